"""`KubernetesCluster`: the Cluster seam over an API server."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import TracebackType

from coxswain.errors import Refused, Retryable
from coxswain_operator.cluster import Change, Conflict, Happening, Manifest
from coxswain_operator.kubernetes.cache import Cache
from coxswain_operator.kubernetes.connection import APPLY, Connection, NotFound
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS, Informer
from coxswain_operator.kubernetes.resources import BY_KIND, EVENTS, Resource

log = logging.getLogger(__name__)

FIELD_MANAGER = "coxswain-operator"
_EVENT_SECONDS = 5.0  # events are a courtesy: nothing waits long for them
_NOTE_LENGTH = 1024  # what the API takes


class KubernetesCluster:
    """Lists come from informers that also hear the answers to our own writes: as of now for what this operator did.

    Use as `async with`. Of the kinds that others use too only what carries the label `coxswain.dev/job-uid` is seen.
    """

    def __init__(self, connection: Connection, namespaced: bool = False, silence: float = SILENCE_SECONDS) -> None:
        """`namespaced`: one informer a namespace, for an operator that has no cluster-wide rights."""
        self._connection, self._namespaced, self._silence = connection, namespaced, silence
        self._informers: dict[tuple[str, str], tuple[Informer, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> KubernetesCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for _, task in self._informers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._informers.clear()

    async def list(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        """Raises Retryable while the server cannot be asked."""
        informer = self._informer(kind, namespace)
        await informer.ready()
        return informer.cache.select(namespace, labels)

    async def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[Change]:
        """`namespace` "" is all of them. Waits as long as the server cannot be asked."""
        informer, wanted = self._informer(kind, namespace), (labels or {}).items()
        await informer.ready(deadline=None)
        queue = informer.cache.subscribe()
        try:
            for manifest in informer.cache.select(namespace, labels):
                yield Change("ADDED", manifest)
            while True:
                change = await queue.get()
                meta = change.object["metadata"]
                if namespace in ("", meta.get("namespace")) and wanted <= (meta.get("labels") or {}).items():
                    yield change
        finally:
            informer.cache.unsubscribe(queue)

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises AlreadyExists, Refused with the server's words, Retryable."""
        resource, namespace = BY_KIND[manifest["kind"]], manifest["metadata"].get("namespace", "")
        try:
            stored = await self._connection.call("POST", resource.path(namespace), manifest, fieldManager=FIELD_MANAGER)
        except NotFound as error:  # the namespace, or the kind
            raise Refused("NotFound", str(error)) from error
        return self._noted(resource, stored)

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        resource = BY_KIND[kind]
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        try:
            answer = await self._connection.call("DELETE", resource.path(namespace, name), options)
        except (NotFound, Conflict):  # gone, or another of that name has taken its place
            self._cache(kind, namespace).note_gone((namespace, name), uid)
            return
        if answer["kind"] == kind:
            self._noted(resource, answer)
        else:
            self._cache(kind, namespace).note_gone((namespace, name), uid)

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        """Applies the status server-side as our field manager: what we leave out goes, what others own stays."""
        resource = BY_KIND[kind]
        version = {"resourceVersion": resource_version} if resource_version else {}
        head = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name, **version}}
        path = resource.path(namespace, name, "status")
        try:
            stored = await self._connection.call(
                "PATCH", path, {**head, "status": status}, APPLY, fieldManager=FIELD_MANAGER, force="true"
            )
        except NotFound as error:
            raise Conflict(f"{kind} {namespace}/{name} is gone") from error
        return self._noted(resource, stored)

    async def publish(self, involved: Manifest, happening: Happening) -> None:
        """Tries to; an event that cannot be stored is logged, since no job should wait or end for it."""
        path = EVENTS.path(involved["metadata"]["namespace"])
        try:
            await self._connection.call("POST", path, _event(involved, happening), deadline=_EVENT_SECONDS)
        except (Refused, Retryable, NotFound) as error:
            log.warning("event %s is lost: %s", happening.reason, error)

    def note(self, change: Change) -> None:
        """Hears of a change from elsewhere: whoever rings for it can be sure that the next list has it."""
        kind, meta = change.object["kind"], change.object["metadata"]
        cache = self._cache(kind, meta.get("namespace", ""))
        if change.kind == "DELETED":
            cache.note_gone((meta.get("namespace", ""), meta["name"]), meta["uid"])
        else:
            cache.note(change.object)

    def silence(self, now: float) -> float:
        """Seconds since the quietest of the streams was last heard; `now` in time.monotonic()'s terms."""
        return max((now - informer.heard for informer, _ in self._informers.values()), default=0.0)

    def _noted(self, resource: Resource, stored: Manifest) -> Manifest:
        meta = stored["metadata"]
        meta.pop("managedFields", None)
        if not resource.selector or resource.selector in (meta.get("labels") or {}):
            self._cache(resource.kind, meta.get("namespace", "")).note(stored)
        return stored

    def _cache(self, kind: str, namespace: str) -> Cache:
        return self._informer(kind, namespace).cache

    def _informer(self, kind: str, namespace: str) -> Informer:
        """Started at first use."""
        key = kind, namespace if self._namespaced else ""
        if key not in self._informers:
            informer = Informer(self._connection, BY_KIND[kind], key[1], self._silence)
            self._informers[key] = informer, asyncio.create_task(informer.run(), name=f"informer {kind}")
        return self._informers[key][0]


def _event(involved: Manifest, happening: Happening) -> Manifest:
    meta = involved["metadata"]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "action": "Reconcile",
        "reason": happening.reason,
        "note": happening.message[:_NOTE_LENGTH],
        "type": "Warning" if happening.warning else "Normal",
        "regarding": {
            "apiVersion": involved["apiVersion"],
            "kind": involved["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
    }
