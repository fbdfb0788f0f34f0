"""A job in a Kubernetes cluster, read with the rights of the user's kubeconfig. What `view` grants is enough.

Why neither the coordinator's calls nor its page are asked: docs/design/report.md.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from coxswain import names
from coxswain.api.common import PATTERNS, SUBDOMAIN
from coxswain.api.field_errors import quoted
from coxswain.api.label_faults import is_domain
from coxswain.config import JobConfig
from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain_cli.readers.api_reads import list_items, read_logs
from coxswain_cli.readers.stored_run import open_location
from coxswain_cli.readers.values import Manifest, Progress, Seen, Write, stored
from coxswain_cli.reporting.formatting import seconds_of
from coxswain_cli.reporting.model import MixInForce, RecordedEvent, RecordedRun
from coxswain_cli.reporting.read import StepsRead, mixes_of, mounted_job, read_steps
from coxswain_cli.reporting.step_selection import chosen_steps
from coxswain_cli.summary import has_ended, has_failed, is_suspended
from coxswain_cli.workdir import condition
from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.access import Access, users_access
from coxswain_operator.kubernetes.connection import MERGE, Connection, NotFound
from coxswain_operator.kubernetes.resources import BY_KIND
from coxswain_operator.views import member_name

_DEADLINE = 5.0  # seconds for one answer of the API server
_JOBS, _PODS, _MAPS = BY_KIND["TrainingJob"], BY_KIND["Pod"], BY_KIND["ConfigMap"]
_NAMED = 5  # logs that cannot be read: all pods of a large job may wait for their image
_LOG_SILENCE = 86_400.0  # seconds without a line, after which a followed log is given up

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Options of the command line. All empty: not a cluster."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""

    def __bool__(self) -> bool:
        return bool(self.kubeconfig or self.context or self.namespace)

    def check(self, job: str = "") -> None:
        """Raises Refused for a name that no object has: within an address it might be another one's."""
        for what, name in (("--namespace", self.namespace), ("JOB", job)):
            if name and not is_domain(name):
                allowed = f"a name in a cluster has {PATTERNS[SUBDOMAIN]}"
                raise Refused("BadName", f"{what} is {quoted(name)}; {allowed}: correct it")

    def access(self) -> Access:
        return users_access(self.kubeconfig, self.context)

    @property
    def cluster_options(self) -> str:
        """The options that name the cluster, for a command of `cox` or of kubectl to type: of the same names in both."""
        options = {"--kubeconfig": str(self.kubeconfig or ""), "--context": self.context}
        return "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value)

    def status_of(self, namespace: str) -> str:
        """The command that lists what is in a namespace of this cluster."""
        return f"`cox status{self.cluster_options} --namespace {shlex.quote(namespace)}`"


NOWHERE = Place()


class ClusterReader:
    def __init__(self, access: Access, namespace: str, name: str, place: Place = NOWHERE) -> None:
        """`place`: as it was typed, for commands to type next."""
        self._access, self._namespace, self._name, self._place = access, namespace, name, place

    @property
    def report_path(self) -> Path:
        return Path(f"{self._name}-report.html")

    def look(self) -> Seen:
        async def ask(connection: Connection) -> Seen:
            job = await self._job(connection)
            pods, missing = await _allowed("pods", self._pods(connection, job))
            return seen(job, pods, missing)

        return _asked(self._access, ask)

    def record(self, steps: tuple[int, ...]) -> RecordedRun:
        async def ask(connection: Connection) -> tuple[Manifest, RecordedRun]:
            job = await self._job(connection)
            maps, without_maps = await _allowed("settings of the job, such as its mix", self._maps(connection, job))
            events, without_events = await _allowed("events", self._events(connection, job))
            config, status, notes = mounted_job(maps), job.get("status") or {}, (*without_maps, *without_events)
            mixes = mixes_of(config)
            run = RecordedRun(self._name, events=tuple(events), job=config, status=status, mixes=mixes, notes=notes)
            return job, run

        job, run = _asked(self._access, ask)
        return _with_steps(run, job["spec"]["checkpoint"]["uri"], steps)

    def logs(self, member: str, follow: bool, write: Write) -> None:
        async def ask(connection: Connection) -> None:
            job = await self._job(connection)
            pods = current_pods(await self._pods(connection, job), member)
            if not pods:
                raise Retryable(self._without_pods(job, member))
            places = [(pod["metadata"]["name"], container) for pod in pods for container in containers_of(pod)]
            reads = [partial(self._log, connection, *place, follow, write) for place in places]
            if missing := [why for why in await read_logs(reads, follow) if why]:
                more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
                raise Retryable("; ".join(missing[:_NAMED]) + more)

        _asked(self._access, ask)

    def _without_pods(self, job: Manifest, member: str) -> str:
        state = condition(job, "Succeeded").get("reason", "Queued")
        return f"TrainingJob {self._namespace}/{self._name} has no pod {f'of {member} ' if member else ''}now: it is {state}"

    async def _job(self, connection: Connection) -> Manifest:
        try:
            return await connection.call("GET", _JOBS.path(self._namespace, self._name))
        except NotFound as error:
            raise _absent(error, self._place, self._namespace, self._name) from error

    async def _pods(self, connection: Connection, job: Manifest) -> list[Manifest]:
        selector = f"{names.LABEL_JOB_UID}={job['metadata']['uid']}"
        return await list_items(connection, _PODS.path(self._namespace), labelSelector=selector)

    async def _maps(self, connection: Connection, job: Manifest) -> list[Manifest]:
        """The job's ConfigMaps: one holds the job as the operator has resolved it."""
        selector = f"{names.LABEL_JOB_UID}={job['metadata']['uid']}"
        return await list_items(connection, _MAPS.path(self._namespace), labelSelector=selector)

    async def _events(self, connection: Connection, job: Manifest) -> list[RecordedEvent]:
        selector = f"involvedObject.uid={job['metadata']['uid']}"
        path = f"/api/v1/namespaces/{self._namespace}/events"
        found = await list_items(connection, path, fieldSelector=selector)
        return sorted(map(_event, found), key=lambda e: e.time)

    async def _log(self, connection: Connection, pod: str, container: str, follow: bool, write: Write) -> str:
        """Why there is no log, such as a container that waits; empty: it was read."""
        path = _PODS.path(self._namespace, pod, "log")
        query = {"container": container, "follow": "true" if follow else "false"}
        try:
            async for line in connection.lines(path, _LOG_SILENCE, torn=True, **query):
                write(f"{pod}/{container}", line + b"\n")
        except CoxswainError as error:
            return str(error)
        return ""


async def _allowed(what: str, items: Awaitable[list[T]]) -> tuple[list[T], tuple[str, ...]]:
    """The items; none, and why, where the user has no right to them: the rest is worth showing."""
    try:
        return await items, ()
    except Denied as error:
        return [], (f"no {what}: {error}",)


def seen(job: Manifest, pods: list[Manifest], missing: tuple[str, ...] = ()) -> Seen:
    """`missing`: what could not be read of the cluster."""
    status, summary = job.get("status") or {}, condition(job, "Succeeded")
    over = has_ended(job) or is_suspended(job)
    note = f"at {status['updatedAt']}" if status.get("updatedAt") else ""
    state, lines = summary.get("reason", "Queued"), (*summary.get("message", "").splitlines(), *missing)
    progress = stored(status, note=note)
    if over and progress:  # it stands still: neither rates nor a time left
        progress = Progress(progress.step, progress.steps, progress.loss)
    return Seen(job, state, lines, pods, step=progress.step if progress else 0, progress=progress)


def current_pods(pods: list[Manifest], member: str) -> list[Manifest]:
    """The newest pod of each member, or of one."""
    newest: dict[str, Manifest] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        name = member_name(labels.get(names.LABEL_ROLE, ""), labels.get(names.LABEL_INDEX, "0"))
        if member in ("", name) and _incarnation(pod) >= _incarnation(newest.get(name)):
            newest[name] = pod
    return [newest[name] for name in sorted(newest)]


def _incarnation(pod: Manifest | None) -> int:
    return -1 if pod is None else int((pod["metadata"].get("labels") or {}).get(names.LABEL_INCARNATION, "0"))


def containers_of(pod: Manifest) -> list[str]:
    """Our own and those of a template, sidecars first; init containers that end are left out."""
    sidecars = [c for c in pod["spec"].get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    return [c["name"] for c in (*sidecars, *pod["spec"]["containers"])]


def _event(item: Manifest) -> RecordedEvent:
    time = item.get("eventTime") or item.get("lastTimestamp") or item["metadata"].get("creationTimestamp")
    involved = item["involvedObject"]
    place = f"{involved.get('kind', '')}/{involved.get('name', '')}"
    return RecordedEvent(seconds_of(time), item.get("reason") or "", item.get("message") or "", place)


def _with_steps(run: RecordedRun, uri: str, wanted: tuple[int, ...]) -> RecordedRun:
    """Adds the steps and mixes that the checkpoint location has, or says why there are none."""
    chosen_steps((), {}, wanted)  # refuses steps that are asked for: timings stay in the coordinator's pod
    try:
        mixes, (steps, redone, unreadable) = _stored(uri, run.job)
    except (CoxswainError, OSError) as error:
        return replace(run, notes=(*run.notes, f"no steps: {uri} cannot be read from here ({error})"))
    note = f"steps up to the last checkpoint, from {uri}; timings stay in the coordinator's pod"
    notes = (*run.notes, note)
    return replace(run, steps=steps, redone=redone, unreadable=unreadable, mixes=mixes or run.mixes, notes=notes)


def _stored(uri: str, config: JobConfig | None) -> tuple[tuple[MixInForce, ...], StepsRead]:
    if not uri.startswith("s3://"):
        raise Refused("NotReachable", "only s3:// is the same place in the cluster and here")
    location = open_location(uri, config.checkpoint.endpoint if config else None)
    return location.mixes(), read_steps(location.step_lines())


def _absent(error: NotFound, place: Place, namespace: str, name: str) -> Refused:
    """A job that is not there, or its kind."""
    if '" not found' not in str(error):
        return _unknown_kind(place)
    way_out = f"{place.status_of(namespace)} lists what is there"
    return Refused("NoJob", f"namespace {namespace} has no TrainingJob {name}; {way_out}")


def _unknown_kind(place: Place) -> Refused:
    command = f"cox crds | kubectl apply{place.cluster_options} --server-side --filename -"
    return Refused("NoKinds", f"the API server knows no TrainingJobs; `{command}` installs them")


def _asked(access: Access, question: Callable[[Connection], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with Connection(access, _DEADLINE) as connection:
            return await question(connection)

    try:
        access.trust.context()
    except OSError as error:  # certificates that cannot be read
        raise Refused(
            "NoClusterAccess", f"{access.url}: {error}; correct the certificates of the kubeconfig"
        ) from error
    return asyncio.run(ask())


def cluster_reader(place: Place, job: str) -> ClusterReader:
    place.check(job)
    access = place.access()
    return ClusterReader(access, place.namespace or access.namespace, job, place)


def jobs_of(place: Place) -> Iterator[Seen]:
    """Every job of a namespace, without its pods."""
    place.check()
    access = place.access()

    async def ask(connection: Connection) -> list[Manifest]:
        try:
            return await list_items(connection, _JOBS.path(place.namespace or access.namespace))
        except NotFound as error:
            raise _unknown_kind(place) from error

    for job in _asked(access, ask):
        yield seen(job, [])


def scale(place: Place, job: str, trainers: int) -> str:
    """Sets the job's number of trainers by its scale subresource; returns what was asked for, with its place and cluster.

    Raises Refused in the server's words.
    """
    place.check(job)
    access = place.access()
    namespace = place.namespace or access.namespace
    wanted: Manifest = {"spec": {"replicas": trainers}}

    async def ask(connection: Connection) -> Manifest:
        try:
            await connection.send("PATCH", _JOBS.path(namespace, job, "scale"), wanted, MERGE)
        except NotFound as error:
            raise _absent(error, place, namespace, job) from error
        with suppress(Denied):  # a right to scale a job is none to read it
            return await connection.call("GET", _JOBS.path(namespace, job))
        return {}

    asked = f"{namespace}/{job} of {access.url}: asked for {trainers} trainers"
    return asked + _without_effect(_asked(access, ask), place, namespace)


def _without_effect(job: Manifest, place: Place, namespace: str) -> str:
    """Why no trainer starts or ends for it now, and the way out; empty: the job has not ended, or may not be read."""
    if not has_ended(job):
        return ""
    end, first = ("has failed", "") if has_failed(job) else ("is complete", "raise spec.stop, then ")
    where, name = f"{place.cluster_options} --namespace {shlex.quote(namespace)}", job["metadata"]["name"]
    command = f"kubectl annotate{where} --overwrite tj {name} {names.ANNOTATION_RETRY}=VALUE"
    return f"; but the job {end}: to train on with them, {first}`{command}` with another VALUE each time"
