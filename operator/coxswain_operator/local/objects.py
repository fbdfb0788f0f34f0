"""The object store of the local cluster: one JSON file an object.

It behaves like an API server: uid, resource versions, watches.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from coxswain.errors import Refused
from coxswain_operator.cluster import AlreadyExists, Conflict, WatchEvent
from coxswain_operator.local.failed_writes import FailedWrites
from coxswain_operator.pod_decoding import PodStatus
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Manifest

Key = tuple[str, str, str]  # kind, namespace, name


class Metadata(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str
    resource_version: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,18}$")]
    generation: int
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    owner_references: list[dict[str, Any]] = []


class Stored(msgspec.Struct):
    """What is read of any object without another look at its shape."""

    metadata: Metadata
    spec: dict[str, Any] = {}
    data: dict[str, Any] = {}


class StoredJob(Stored):
    status: JobStatus = JobStatus()


class StoredPodStatus(PodStatus, frozen=True, rename="camel", kw_only=True):
    phase: str


class StoredPod(Stored, kw_only=True):
    status: StoredPodStatus


_SHAPES: dict[str, type[Stored]] = {"TrainingJob": StoredJob, "Pod": StoredPod}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST = 245  # letters of a name: a draft of its file, .NAME.json.new, has at most the 255 of a file system
_CONTENT = ("spec", "data")  # `generation` counts changes of these


class Objects:
    """All objects in memory and on disk. Callers get and give copies, never the store's own."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.time, failed: FailedWrites | None = None
    ) -> None:
        self._folder, self._clock, self._failed = folder, clock, failed or FailedWrites(clock)
        self._objects: dict[Key, Manifest] = {}
        self._watchers: list[Callable[[WatchEvent], None]] = []
        self._objects |= {key_of(manifest): manifest for manifest in read_objects(folder)}
        self._version = max((int(m["metadata"]["resourceVersion"]) for m in self._objects.values()), default=0)

    def select(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        return [copy.deepcopy(m) for m in self._objects.values() if _matches(m, kind, namespace, labels)]

    def everything(self, kind: str) -> list[Manifest]:
        """All objects of a kind, of all namespaces."""
        return [copy.deepcopy(m) for k, m in self._objects.items() if k[0] == kind]

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return copy.deepcopy(self._objects.get((kind, namespace, name)))

    def create(self, manifest: Manifest) -> Manifest:
        """Stores a new object with uid, time and version.

        Raises AlreadyExists, or Refused for an invalid name.
        """
        key = key_of(manifest)
        if not _NAME.fullmatch(key[2]) or len(key[2]) > _LONGEST:
            allowed = (
                f"allowed are lower-case letters, digits, '-' and '.', at most {_LONGEST} on one machine; rename it"
            )
            raise Refused("InvalidName", f"{key[0]} name {key[2]!r}: {allowed}")
        if key in self._objects:
            raise AlreadyExists(f"{key[0]} {key[1]}/{key[2]} exists already")
        stored = encode_strings(copy.deepcopy(manifest))
        metadata = stored["metadata"]
        metadata.update(namespace=key[1], uid=str(uuid.uuid4()), creationTimestamp=self.stamp(), generation=1)
        return self._store("ADDED", stored)

    def replace(self, manifest: Manifest) -> Manifest:
        """Replaces content, labels and annotations; keeps the status. Raises Conflict or KeyError."""
        current = self._objects[key_of(manifest)]
        _expect_version(current, manifest["metadata"].get("resourceVersion", ""))
        stored = encode_strings(copy.deepcopy(manifest))
        stored["metadata"] = {**current["metadata"], **stored["metadata"]}
        if "status" in current:
            stored["status"] = current["status"]
        changed = any(stored.get(part) != current.get(part) for part in _CONTENT)
        stored["metadata"]["generation"] = current["metadata"]["generation"] + int(changed)
        return self._store("MODIFIED", stored)

    def write_status(self, key: Key, status: Manifest, resource_version: str = "") -> Manifest:
        """Replaces the status. Raises Conflict when the object has changed or is gone."""
        if key not in self._objects:
            raise Conflict(f"{key[0]} {key[1]}/{key[2]} is gone")
        current = self._objects[key]
        _expect_version(current, resource_version)
        return self._store("MODIFIED", {**current, "status": copy.deepcopy(status)})

    def mark_deleting(self, key: Key) -> None:
        current = self._objects[key]
        if "deletionTimestamp" not in current["metadata"]:
            metadata = {**current["metadata"], "deletionTimestamp": self.stamp()}
            self._store("MODIFIED", {**current, "metadata": metadata})

    def remove(self, key: Key) -> None:
        """Raises OSError: the object is still there."""
        if key in self._objects:
            with self._failed.watch(self.path(key)):
                self.path(key).unlink(missing_ok=True)
            self._notify(WatchEvent("DELETED", self._objects.pop(key)))

    def deleting(self) -> list[tuple[Key, str]]:
        """Keys and uids of objects whose deletion has begun."""
        return self._found(lambda metadata: "deletionTimestamp" in metadata)

    def owned_by(self, uid: str) -> list[tuple[Key, str]]:
        """Keys and uids of objects that name this uid as their owner."""
        return self._found(lambda metadata: uid in (o["uid"] for o in metadata.get("ownerReferences", ())))

    def _found(self, wanted: Callable[[Manifest], bool]) -> list[tuple[Key, str]]:
        return [(k, m["metadata"]["uid"]) for k, m in self._objects.items() if wanted(m["metadata"])]

    async def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[WatchEvent]:
        """Yields current objects as ADDED, then every change."""
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers.append(queue.put_nowait)
        try:
            for manifest in self.select(kind, namespace, labels):
                yield WatchEvent("ADDED", manifest)
            while True:
                change = await queue.get()
                if _matches(change.object, kind, namespace, labels):
                    yield change
        finally:
            self._watchers.remove(queue.put_nowait)

    def _store(self, change: Any, manifest: Manifest) -> Manifest:
        self._version += 1
        manifest = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self._version)}}
        key = key_of(manifest)
        with self._failed.watch(self.path(key)):
            write_atomically(self.path(key), json.dumps(manifest, indent=1).encode())
        self._objects[key] = manifest
        self._notify(WatchEvent(change, manifest))
        return copy.deepcopy(manifest)

    def _notify(self, change: WatchEvent) -> None:
        for watcher in self._watchers:
            watcher(WatchEvent(change.kind, copy.deepcopy(change.object)))

    def stamp(self) -> str:
        """The time by the cluster's clock."""
        return stamp(self._clock())

    def path(self, key: Key) -> Path:
        """The object's file."""
        return self._folder / key[0] / key[1] / f"{key[2]}.json"


def key_of(manifest: Manifest) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", "default"), metadata["name"]


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file: readers see the old or the new one, also when the writer is killed or the power fails.

    Raises OSError with the file's name; the draft, which may fill the disk, is gone then.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the name with an empty file
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def encode_strings(manifest: Manifest) -> Manifest:
    """Moves a Secret's `stringData` into its `data`. A field that is null is absent, as for an API server."""
    if (plain := manifest.pop("stringData", None)) is not None:
        encoded = {k: base64.b64encode(v.encode()).decode() for k, v in plain.items()}
        manifest["data"] = {**(manifest.get("data") or {}), **encoded}
    if manifest.get("data", "") is None:
        del manifest["data"]
    return manifest


def read_objects(folder: Path) -> list[Manifest]:
    """All objects of a store's folder, which may be open elsewhere.

    Raises Refused, naming one that is damaged or that this user may not read.
    """
    _check_listed(folder)
    contents = ((path, _content_of(path)) for path in sorted(folder.glob("*/*/*.json")))
    return [_decode(path, content) for path, content in contents if content is not None]


def _check_listed(folder: Path) -> None:
    """`glob` takes a folder of another user for an empty one."""
    try:
        os.scandir(folder).close()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unreadable(folder, error) from error


def _content_of(path: Path) -> bytes | None:
    """None: it was deleted since the folder was listed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise _corrupt(path, str(error.strerror)) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> Refused:
    way_out = "repeat this as the user that ran the job, or repair that"
    return Refused("ObjectUnreadable", f"{path} cannot be read ({error.strerror}); {way_out}")


def _decode(path: Path, content: bytes) -> Manifest:
    try:
        manifest: Manifest = json.loads(content)
        if key_of(manifest)[::2] != (path.parent.parent.name, path.stem) or not manifest["metadata"]["uid"]:
            raise ValueError("it names another object")
        msgspec.convert(manifest, _SHAPES.get(manifest["kind"], Stored))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, f"no {error}" if isinstance(error, KeyError) else str(error)) from error
    return manifest


def _corrupt(path: Path, why: str) -> Refused:
    way_out = "delete it, or start in another --workdir"
    return Refused("CorruptObject", f"{path} is not an object of this folder ({why}); {way_out}")


def _matches(manifest: Manifest, kind: str, namespace: str, labels: dict[str, str] | None) -> bool:
    metadata = manifest["metadata"]
    if manifest["kind"] != kind or metadata["namespace"] != namespace:
        return False
    theirs: dict[str, str] = metadata.get("labels") or {}
    return all(theirs.get(k) == v for k, v in (labels or {}).items())


def _expect_version(current: Manifest, resource_version: str) -> None:
    actual = current["metadata"]["resourceVersion"]
    if resource_version and resource_version != actual:
        name = "/".join(key_of(current))
        raise Conflict(f"{name} is at resourceVersion {actual}, the write was based on {resource_version}")
