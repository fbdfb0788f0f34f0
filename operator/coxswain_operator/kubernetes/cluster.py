"""`KubernetesCluster`: the Cluster seam over an API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from coxswain.errors import Refused
from coxswain.names import API_VERSION
from coxswain_operator.children.scheduling import RETRIABLE
from coxswain_operator.children.template_policy import ENFORCE
from coxswain_operator.children.workload import GROUP as KUEUE
from coxswain_operator.cluster import Conflict, Denied, WatchEvent
from coxswain_operator.kubernetes.cache import Cache, CacheEvent, Entry, Name
from coxswain_operator.kubernetes.connection import APPLY, MERGE, Connection, NotFound
from coxswain_operator.kubernetes.decoding import kind_of, manifest_of
from coxswain_operator.kubernetes.discovery import served
from coxswain_operator.kubernetes.events import Events
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS, Informer
from coxswain_operator.kubernetes.ownership import leftovers
from coxswain_operator.kubernetes.read_cache import ReadCache
from coxswain_operator.kubernetes.resources import FIELD_MANAGER, NAMESPACES, SECRETS, with_groups
from coxswain_operator.kubernetes.until_given import until_given
from coxswain_operator.kubernetes.workloads import Workloads
from coxswain_operator.repeated_line import RepeatedLine
from coxswain_operator.views import AdmissionView, Event, Manifest, NodeView, PodView

log = logging.getLogger(__name__)

SECRET_SECONDS = 300.0  # for which a Secret that was read is remembered
NAMESPACE_SECONDS = 30.0  # likewise a namespace
DISCOVERY_SECONDS = 2.0  # between two looks whether the CRDs are there


class KubernetesCluster:
    """Lists come from informers that also take the results of own writes: a read sees them at once.

    Use as `async with`. Of kinds that others use too, only objects with the label `coxswain.dev/job-uid` are read.
    """

    def __init__(
        self,
        connection: Connection,
        namespaced: bool = False,
        silence: float = SILENCE_SECONDS,
        gang_backend: str = "",
    ) -> None:
        """`namespaced`: one informer a namespace, for an operator that has no cluster-wide rights."""
        self._resources = with_groups(gang_backend)
        self._connection, self._namespaced, self._silence = connection, namespaced, silence
        self._informers: dict[tuple[str, str], tuple[Informer, asyncio.Task[None]]] = {}
        self._secrets = ReadCache(connection, SECRETS, SECRET_SECONDS)
        self._namespaces = ReadCache(connection, NAMESPACES, NAMESPACE_SECONDS)
        self._events = Events(connection)
        self._workloads = Workloads(connection)
        self._written: dict[Name, str] = {}  # TrainingJobs: the version that our last write made

    async def __aenter__(self) -> KubernetesCluster:
        await self._events.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for _, task in self._informers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._informers.clear()
        await self._events.__aexit__(kind, error, trace)

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Raises Retryable while the server cannot be asked. A Secret is asked for by its name, and
        remembered for a while; None where that is not permitted."""
        if kind == SECRETS.kind:
            return await self._secrets.get(namespace, name)
        entry = (await self._ready(kind, namespace)).cache.get((namespace, name))
        return None if entry is None else manifest_of(entry.value)

    async def list(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        """Raises Retryable while the server cannot be asked. Of a kind that jobs run without there is none where it is not
        installed, and Denied is raised where the operator may not list it."""
        if self._resources[kind].optional and not await self._informer(kind, namespace).readable():
            return []
        cache = (await self._ready(kind, namespace)).cache
        return [manifest_of(entry.value) for entry in cache.select(namespace, labels)]

    async def listed(self, kind: str, namespace: str) -> None:
        """Returns once all objects were listed. Waits as long as the server cannot be asked, or forbids it."""
        await self._informer(kind, namespace).ready(deadline=None)

    async def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """By a LIST of this name, which needs no right that the informers do not need. Raises Retryable."""
        path = self._resources[kind].path(namespace)
        found = (await self._connection.call("GET", path, fieldSelector=f"metadata.name={name}"))["items"]
        return {"kind": kind, **found[0]} if found else None

    async def pod_views(self, namespace: str, job_uid: str) -> Sequence[PodView]:
        cache = (await self._ready("Pod", namespace)).cache
        return [e.value for e in cache.of_owner(job_uid) if e.value is not None and e.name[0] == namespace]

    async def orphans(self, namespace: str, job: str, besides: str = "") -> Sequence[PodView]:
        cache = (await self._ready("Pod", namespace)).cache
        earlier = [uid for uid in cache.owners(namespace, job) if uid != besides]
        return [
            e.value for uid in earlier for e in cache.of_owner(uid) if e.value is not None and e.name[0] == namespace
        ]

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        """Where there is no Kueue, or no group any more, there is nothing to leave."""
        if pod:
            path, head = self._resources["Pod"].path(namespace, pod), {"uid": uid} if uid else {}
            mark = {"metadata": {**head, "annotations": {RETRIABLE: "false"}}}
            try:
                self._noted("Pod", namespace, await self._connection.send("PATCH", path, mark, MERGE))
            except NotFound:
                pass
            except Refused as error:
                if "metadata.uid" not in error.message:  # else another pod has that name now
                    raise
            return
        await self._workloads.delete(namespace, group)

    async def admissions(self, namespace: str, job_uid: str) -> Sequence[AdmissionView] | None:
        return await self._workloads.admissions(namespace, job_uid)

    async def pod_security(self, namespace: str) -> str:
        found = await self._namespaces.get("", namespace)
        return str(((found or {"metadata": {}})["metadata"].get("labels") or {}).get(ENFORCE, ""))

    async def nodes(self) -> Mapping[str, NodeView] | None:
        """None where the operator has no right to see them."""
        informer = self._informer("Node", "")
        if not await informer.permitted():
            return None
        return {entry.name[1]: entry.value for entry in informer.cache.select("")}

    async def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[WatchEvent]:
        """`namespace` "" is all of them. Waits as long as the server cannot be asked."""
        informer, wanted = self._informer(kind, namespace), (labels or {}).items()
        await informer.ready(deadline=None)
        queue: asyncio.Queue[CacheEvent[Any]] = informer.cache.subscribe()
        try:
            for entry in [*informer.cache.select(namespace, labels)]:
                yield WatchEvent("ADDED", _shown(kind, entry))
            while True:
                event = await queue.get()
                if namespace in ("", event.entry.name[0]) and wanted <= event.entry.labels.items():
                    yield WatchEvent(event.kind, _shown(kind, event.entry))
        finally:
            informer.cache.unsubscribe(queue)

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises AlreadyExists, Refused or Denied with the server's message, Retryable."""
        if manifest["apiVersion"].startswith(f"{KUEUE}/"):
            return await self._workloads.create(manifest)
        resource, meta = self._resources[manifest["kind"]], manifest["metadata"]
        namespace = meta.get("namespace", "")
        try:
            path = resource.path(namespace)
            # Strict: a field that the server does not know is refused, not dropped.
            query: dict[str, Any] = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
            stored = await self._connection.send("POST", path, manifest, **query)
        except NotFound as error:  # the namespace, or the kind
            raise Denied("NotFound", str(error)) from error
        return self._noted(resource.kind, namespace, stored)

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        options |= {"gracePeriodSeconds": 0} if force else {}
        try:
            path = self._resources[kind].path(namespace, name)
            answer = await self._connection.send("DELETE", path, options)
        except Conflict:
            found = await self.find(kind, namespace, name)
            if found is None or found["metadata"]["uid"] != uid:  # another has that name now; the watch will report it
                return
            raise
        except NotFound:
            answer = b'{"kind": "Status"}'
        if kind_of(answer) == kind:
            self._noted(kind, namespace, answer)
        else:
            self._cache(kind, namespace).apply_delete((namespace, name), uid)

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        """Applies the status server-side as our field manager: what we leave out goes, conditions of others stay."""
        resource = self._resources[kind]
        version = {"resourceVersion": resource_version} if resource_version else {}
        head = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name, **version}}
        place = kind, namespace, name
        manifest = await self._send_status(place, {**head, "status": status}, APPLY, force="true")
        if left := leftovers(status, manifest.get("status") or {}):
            version = {"resourceVersion": manifest["metadata"]["resourceVersion"]}
            manifest = await self._send_status(place, {"metadata": version, "status": left}, MERGE)
        if kind == "TrainingJob":
            self._written[namespace, name] = manifest["metadata"]["resourceVersion"]
        return manifest

    async def _send_status(
        self, place: tuple[str, str, str], patch: Manifest, content_type: str, **query: Any
    ) -> Manifest:
        kind, namespace, name = place
        path = self._resources[kind].path(namespace, name, "status")
        try:
            stored = await self._connection.send(
                "PATCH", path, patch, content_type, fieldManager=FIELD_MANAGER, **query
            )
        except NotFound as error:
            raise Conflict(f"{kind} {namespace}/{name} is gone") from error
        return self._noted(kind, namespace, stored)

    async def publish(self, involved: Manifest, event: Event) -> None:
        """Queues it: no pass waits for an event."""
        self._events.put(involved, event)

    def note(self, change: WatchEvent) -> bool:
        """Takes a change from kopf: the next list contains it.

        False: the change is this operator's own last write.
        """
        kind, meta = change.object["kind"], change.object["metadata"]
        name = meta.get("namespace", ""), meta["name"]
        informer = self._informer(kind, name[0])
        if change.kind == "DELETED":
            informer.cache.apply_delete(name, meta["uid"])
            self._written.pop(name, None)
            return True
        informer.cache.apply_write(informer.read(msgspec.json.encode(change.object)))
        return kind != "TrainingJob" or self._written.get(name) != str(meta["resourceVersion"])

    async def served(self, plurals: Sequence[str], pause: float = DISCOVERY_SECONDS) -> None:
        """Returns once the server knows our kinds: their definitions may be installed after the operator."""
        line = RepeatedLine(log)
        while missing := set(plurals) - await until_given(lambda: served(self._connection, API_VERSION)):
            line.warn(f"{API_VERSION}: not served yet: {', '.join(sorted(missing))}; install the CRDs")
            await asyncio.sleep(pause)

    def silence(self, now: float) -> float:
        """Seconds since the last message on the quietest stream; `now` as time.monotonic()."""
        return max((now - informer.heard for informer, _ in self._informers.values()), default=0.0)

    def _noted(self, kind: str, namespace: str, content: bytes) -> Manifest:
        """What a write returned, also for the cache."""
        stored = manifest_of(content)
        meta = stored["metadata"]
        meta.pop("managedFields", None)
        selector = self._resources[kind].selector
        if kind != SECRETS.kind and (not selector or selector in (meta.get("labels") or {})):
            informer = self._informer(kind, namespace)
            informer.cache.apply_write(informer.read(content))
        return stored

    def _cache(self, kind: str, namespace: str) -> Cache[Any]:
        return self._informer(kind, namespace).cache

    async def _ready(self, kind: str, namespace: str) -> Informer:
        informer = self._informer(kind, namespace)
        await informer.ready()
        return informer

    def _informer(self, kind: str, namespace: str) -> Informer:
        """Started at first use."""
        resource = self._resources[kind]
        key = kind, namespace if self._namespaced and resource.namespaced else ""
        if key not in self._informers:
            informer = Informer(self._connection, resource, key[1], self._silence)
            self._informers[key] = informer, asyncio.create_task(informer.run(), name=f"informer {kind}")
        return self._informers[key][0]


def _shown(kind: str, entry: Entry[Any]) -> Manifest:
    """Of a pod and a node only the head is known."""
    if isinstance(entry.value, bytes):
        return manifest_of(entry.value)
    head = {"namespace": entry.name[0], "name": entry.name[1], "uid": entry.uid, "labels": dict(entry.labels)}
    return {"kind": kind, "metadata": head}
