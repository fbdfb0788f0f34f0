"""`LocalCluster`: a Cluster of one work directory and the processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType

from coxswain.errors import Refused
from coxswain.lines import drop_torn_line
from coxswain.names import LABEL_JOB_UID
from coxswain_operator.children.common import controller_of
from coxswain_operator.children.job_token import KEY_BYTES, TokenKeys
from coxswain_operator.cluster import Conflict, WatchEvent
from coxswain_operator.local.addresses import Addresses
from coxswain_operator.local.failed_writes import FailedWrites
from coxswain_operator.local.folder_lock import LOCK_SECONDS, check_held, lock_folder
from coxswain_operator.local.memory import MemoryKills
from coxswain_operator.local.objects import Key, Objects, key_of, write_atomically
from coxswain_operator.local.pods import Machine, Pod, check_supported, mark_of
from coxswain_operator.local.probes import Prober
from coxswain_operator.local.processes import kill_those_with
from coxswain_operator.pod_decoding import pod_view
from coxswain_operator.reconcile.times import moment
from coxswain_operator.views import Event, Manifest, NodeView, PodView

log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
_CLOSING_GRACE = 2.0  # seconds; before a close the job has saved what it keeps
_WRITE_RETRY = 1.0  # seconds
_TERMINAL = ("Succeeded", "Failed")


class LocalCluster:
    """Objects in `workdir/cluster`, logs in `workdir/logs`, events in `workdir/events.jsonl`.

    Use as `async with`.

    One at a time in a work directory. All its processes end when it is closed or killed. Opened
    again it finds all objects unchanged, but running pods as Failed with DisruptionTarget, reason
    ProcessLost.
    """

    def __init__(
        self, workdir: Path, clock: Callable[[], float] = time.time, lock_seconds: float = LOCK_SECONDS,
        memory: MemoryKills | None = None,
    ) -> None:  # fmt: skip
        """`clock` dates the objects: it is the one that reconcile decides by."""
        self.workdir, self._clock, self._lock_seconds = workdir.absolute(), clock, lock_seconds
        self._memory, self._failed = memory or MemoryKills(), FailedWrites(clock)
        self._folder = Path.cwd()  # it may be deleted while the job runs
        self._pods: dict[Key, tuple[Pod, asyncio.Task[None]]] = {}
        self._deletions: dict[Key, asyncio.Task[None]] = {}
        self._closing = False

    async def __aenter__(self) -> LocalCluster:
        self._addresses = Addresses(str(self.workdir))
        self._lock = lock_folder(self.workdir, self._lock_seconds)
        try:
            self._clear_volumes()
            self._objects = Objects(self.workdir / "cluster", self._clock, self._failed)
            self._end_left_processes()
            self._finish_deletions()
            self._mark_lost_pods()
            drop_torn_line(self.workdir / EVENTS)
        except BaseException:
            os.close(self._lock)
            raise
        self._prober = Prober()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True  # from here on no status is written: what a pod says now is our doing
        with contextlib.suppress(OSError):  # a full disk, or a folder that is elsewhere: the next start marks them
            check_held(self._lock, self.workdir)
            self._mark_lost_pods()
        await asyncio.gather(*(pod.stop(task, _CLOSING_GRACE) for pod, task in self._pods.values()))
        while self._deletions:  # that of an owner begins those of what it owns
            await asyncio.gather(*self._deletions.values())
        await self._prober.close()
        self._addresses.close()
        os.close(self._lock)

    async def list(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        return self._objects.select(kind, namespace, labels)

    async def pod_views(self, namespace: str, job_uid: str) -> Sequence[PodView]:
        found = self._objects.select("Pod", namespace, {LABEL_JOB_UID: job_uid})
        return [pod_view(p) for p in found if controller_of(p).get("uid") == job_uid]

    async def orphans(self, namespace: str, job: str, besides: str = "") -> Sequence[PodView]:
        """None: there is no queue that could keep pods."""
        return ()

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        pass

    async def admissions(self, namespace: str, job_uid: str) -> None:
        """None: no queue holds pods back."""

    async def pod_security(self, namespace: str) -> str:
        """No level holds: pods are processes of the user, and no template gives them more."""
        return "privileged"

    async def nodes(self) -> dict[str, NodeView] | None:
        """None: this machine has no node conditions."""
        return None

    def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[WatchEvent]:
        return self._objects.watch(kind, namespace, labels)

    def path_of(self, manifest: Manifest) -> Path:
        """The file of an object."""
        return self._objects.path(key_of(manifest))

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._objects.get(kind, namespace, name)

    async def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._objects.get(kind, namespace, name)

    async def create(self, manifest: Manifest) -> Manifest:
        """Stores the object and starts it if it is a pod.

        Raises AlreadyExists, or Refused for a pod that needs Kubernetes.
        """
        if manifest["kind"] != "Pod":
            return self._objects.create(manifest)
        check_supported(manifest)
        stored = self._objects.create({**manifest, "status": {"phase": "Pending"}})
        try:
            self._start(stored)
        except BaseException:  # a pod that nothing runs would be waited for
            self._objects.remove(key_of(stored))
            raise
        return stored

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replaces an object's spec, data, labels and annotations. Raises Conflict."""
        return self._objects.replace(manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        """Begins deletion of the object and of all that it owns.

        A pod is gone when its processes are; `force` changes nothing.
        """
        key = (kind, namespace, name)
        current = self._objects.get(*key)
        if current is None or (uid and current["metadata"]["uid"] != uid) or key in self._deletions:
            return
        self._objects.mark_deleting(key)
        self._deletions[key] = asyncio.create_task(self._delete(key, current["metadata"]["uid"]))

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        return self._objects.write_status((kind, namespace, name), status, resource_version)

    async def publish(self, involved: Manifest, event: Event) -> None:
        """Appends one line to events.jsonl."""
        line = {
            "time": _precise(event.time or time.time()),
            "reason": event.reason,
            "message": event.message,
            "object": "/".join((involved["kind"], involved["metadata"]["name"])),
            "warning": event.warning,
        }
        path = self.workdir / EVENTS
        with self._failed.watch(path):
            drop_torn_line(path)  # of a write that a full disk has cut short
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def check_writable(self) -> None:
        """Raises OSError, naming the file, when an object or an event could not be written for a while: each try repeats; and
        where the work directory was moved or deleted."""
        check_held(self._lock, self.workdir)
        self._failed.check()

    def token_keys(self) -> TokenKeys:
        """Kept in the work directory, readable by its owner alone."""
        path = self.workdir / "cluster" / "token.key"
        if not path.exists():
            write_atomically(path, secrets.token_hex(KEY_BYTES).encode())
        return TokenKeys((path.read_bytes(),))

    def _start(self, manifest: Manifest) -> None:
        key = key_of(manifest)
        pod = Pod(manifest, self._machine(key[1]), lambda status: self._report(key, status))
        self._pods[key] = (pod, asyncio.create_task(pod.run(), name=f"pod {key[2]}"))

    def _machine(self, namespace: str) -> Machine:
        def lookup(kind: str, name: str) -> Manifest | None:
            return self._objects.get(kind, namespace, name)

        return Machine(
            self.workdir,
            self._addresses,
            self._prober,
            lookup,
            self._objects.stamp,
            self._lock,
            self._memory,
            self._folder,
        )

    def _report(self, key: Key, status: Manifest) -> None:
        if self._closing:
            return
        try:
            self._objects.write_status(key, status)
        except Conflict:  # deleted meanwhile: the status is not needed
            return
        except OSError as error:  # a full disk must not end a pod
            log.error("cannot write the status of %s: %s; trying again in %g s", "/".join(key), error, _WRITE_RETRY)
            asyncio.get_running_loop().call_later(_WRITE_RETRY, self._report_again, key)

    def _report_again(self, key: Key) -> None:
        if key in self._pods:
            self._report(key, self._pods[key][0].status())

    async def _delete(self, key: Key, uid: str) -> None:
        if key in self._pods:
            pod, task = self._pods[key]
            await pod.stop(task)
            del self._pods[key]
        while not self._removed(key):  # noqa: ASYNC110  a disk has no Event to wait for
            await asyncio.sleep(_WRITE_RETRY)
        del self._deletions[key]
        for child, _ in self._objects.owned_by(uid):
            await self.delete(*child)

    def _removed(self, key: Key) -> bool:
        """True also where a close leaves the object's file to the next start."""
        try:
            self._objects.remove(key)
        except OSError as error:
            log.error("cannot delete %s: %s; trying again in %g s", "/".join(key), error, _WRITE_RETRY)
            return self._closing
        return True

    def _finish_deletions(self) -> None:
        """Removes objects whose deletion a killed run had begun, with all that they own."""
        doomed = self._objects.deleting()
        while doomed:
            key, uid = doomed.pop()
            self._objects.remove(key)
            doomed += self._objects.owned_by(uid)

    def _clear_volumes(self) -> None:
        """Of pods of a killed run. Where no pod was ever stored, a folder of that name is the user's own."""
        volumes = self.workdir / "volumes"
        if (self.workdir / "cluster" / "Pod").is_dir():
            shutil.rmtree(volumes, ignore_errors=True)
        elif os.path.lexists(volumes):
            message = f"{self.workdir} cannot be a work directory: {volumes} is there, which no run has made"
            raise Refused("WorkdirUnusable", f"{message}; choose another --workdir")

    def _end_left_processes(self) -> None:
        """Of a killed run: those that its pods have put in sessions of their own."""
        kill_those_with(self.workdir, {mark_of(pod) for pod in self._objects.everything("Pod")})

    def _mark_lost_pods(self) -> None:
        """Marks pods that run as lost, by a disruption and not by their own fault.

        Their cluster closes or was killed, and no process outlives it.
        """
        for pod in self._objects.everything("Pod"):
            if pod["status"]["phase"] not in _TERMINAL:
                self._objects.write_status(key_of(pod), _lost(pod["status"], self._objects.stamp()))


def _precise(seconds: float) -> str:
    """With milliseconds, so that events and steps can be ordered."""
    return moment(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lost(status: Manifest, now: str) -> Manifest:
    why = "its process was killed when its `cox` process ended"
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "ProcessLost", "message": why}
    ending = {"terminated": {"exitCode": 137, "signal": 9, "reason": "ProcessLost", "message": "", "finishedAt": now}}
    containers = [
        c if "terminated" in c["state"] else {**c, "ready": False, "state": ending}
        for c in status.get("containerStatuses", ())
    ]
    conditions = [condition, {"type": "Ready", "status": "False"}]
    return {
        **status,
        "phase": "Failed",
        "reason": "ProcessLost",
        "message": why,
        "conditions": conditions,
        "containerStatuses": containers,
    }
