"""What is kept of an object of each kind: of pods and nodes a slim view, of all others their bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from coxswain import names
from coxswain_operator.kubernetes.cache import Entry
from coxswain_operator.kubernetes.resources import Resource
from coxswain_operator.node_decoding import Node, node_view
from coxswain_operator.pod_decoding import ObjectMeta, Pod, view_of
from coxswain_operator.views import Manifest

Bytes: TypeAlias = bytes | msgspec.Raw
Reader: TypeAlias = Callable[[Bytes], Entry[Any]]


class _Typed(msgspec.Struct):
    kind: str


_POD, _NODE = msgspec.json.Decoder(Pod), msgspec.json.Decoder(Node)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_HEAD, _TYPED = msgspec.json.Decoder(ObjectMeta), msgspec.json.Decoder(_Typed)


def reader_of(resource: Resource) -> Reader:
    match resource.kind:
        case "Pod":
            return read_pod
        case "Node":
            return read_node
        case _:
            head = msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind})
            return lambda content: read_manifest(content, _PARTS.decode(head))


def read_pod(content: Bytes) -> Entry[Any]:
    """Value None: a pod that carries our labels and is none of ours. Its job is its controller, whatever its labels."""
    pod = _POD.decode(content)
    head = _labels(pod.metadata.job, pod.metadata.controller)
    try:
        return _entry(pod.metadata, head, view_of(pod))
    except (KeyError, ValueError):
        return _entry(pod.metadata, head, None)


def read_node(content: Bytes) -> Entry[Any]:
    node = _NODE.decode(content)
    return _entry(node.metadata, {}, node_view(node))


def read_manifest(content: Bytes, head: dict[str, msgspec.Raw]) -> Entry[Any]:
    """Stored encoded: small and immutable. Adds the head that items of a list lack."""
    parts = _PARTS.decode(content)
    metadata = _PARTS.decode(parts["metadata"])
    metadata.pop("managedFields", None)
    raw = msgspec.Raw(msgspec.json.encode(metadata))
    meta = _HEAD.decode(raw)
    return _entry(meta, meta.labels or {}, msgspec.json.encode({**parts, **head, "metadata": raw}))


def manifest_of(content: bytes) -> Manifest:
    decoded: Manifest = msgspec.json.decode(content)
    return decoded


def kind_of(content: bytes) -> str:
    return _TYPED.decode(content).kind


def _entry(meta: ObjectMeta, labels: dict[str, str], value: Any) -> Entry[Any]:
    return Entry((meta.namespace, meta.name), meta.uid, int(meta.resource_version), labels, value)


@lru_cache(maxsize=1024)
def _labels(job: str, uid: str) -> dict[str, str]:
    """Shared by all pods of a job; read-only."""
    return {names.LABEL_JOB: job, names.LABEL_JOB_UID: uid}
