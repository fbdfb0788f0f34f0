"""kopf watches our four kinds; every change adds the affected jobs to the queue.

Only `on.event` handlers: kopf's others write annotations and finalizers, and keep state.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

from coxswain.api.kinds import ALWAYS
from coxswain.import_guard import block_imports
from coxswain.names import GROUP, LABEL_JOB, VERSION
from coxswain_operator.backoff import doubled
from coxswain_operator.cluster import WatchEvent
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.kubernetes.access import Access
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS
from coxswain_operator.kubernetes.trust import Trust
from coxswain_operator.reconcile.references import reads
from coxswain_operator.repeated_line import RepeatedLine
from coxswain_operator.views import Manifest
from coxswain_operator.workqueue import Key

with block_imports("kubernetes"):  # kopf imports it for objects that are not used here: half a second
    import kopf

log = logging.getLogger(__name__)

LONGEST_PAUSE = 15.0  # seconds between two attempts of kopf
AddKey = Callable[[Key], None]
Work = Callable[[], Awaitable[None]]


async def run_watches(
    cluster: KubernetesCluster,
    access: Access,
    add: AddKey,
    namespaces: tuple[str, ...] = (),
    silence: float = SILENCE_SECONDS,
    quarantine: bool = False,
) -> None:
    """Adds jobs until SIGTERM or SIGINT. Raises RuntimeError when a watch that is not kopf's ends.

    `quarantine`: NodeQuarantines are watched too.
    """
    ended = asyncio.Event()
    _at_signals(ended.set)
    works = partial(_works, cluster, access, add, silence=silence, quarantine=quarantine, end=ended.set)
    following = asyncio.create_task(_follow(cluster, namespaces or ("",), works))
    await _until_one_ends((following, asyncio.create_task(ended.wait())))


async def _follow(cluster: KubernetesCluster, scopes: tuple[str, ...], works: Callable[[str], Iterable[Work]]) -> None:
    """Each namespace by itself: one that is gone, or that the server forbids, takes nothing from the others."""
    await cluster.served([kind.plural for kind in ALWAYS])  # kopf looks for the kinds only once, at its start
    await _until_one_ends([asyncio.create_task(_after_jobs(cluster, n, work)) for n in scopes for work in works(n)])
    raise RuntimeError("the watch of pods or of quarantines has ended; restart the operator")


async def _after_jobs(cluster: KubernetesCluster, namespace: str, work: Work) -> None:
    """Jobs before pods: the view of a job's status must not be newer than the view of its pods."""
    await cluster.listed("TrainingJob", namespace)
    await work()


def _works(
    cluster: KubernetesCluster,
    access: Access,
    add: AddKey,
    namespace: str,
    *,
    silence: float,
    quarantine: bool,
    end: Callable[[], None],
) -> Iterator[Work]:
    """What follows one namespace, or all (""). None of it ends by itself."""
    yield partial(_kopf, _registry(cluster, access, add), namespace, silence, end, access.url)
    yield partial(_add_jobs_of_pods, cluster, namespace, add)
    if quarantine:
        yield partial(_add_jobs_at_quarantines, cluster, namespace, add)


def _at_signals(end: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)


async def _until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Waits for the first, cancels the others, and raises the first one's error."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _kopf(
    registry: kopf.OperatorRegistry, namespace: str, silence: float, end: Callable[[], None], server: str
) -> None:
    """Runs kopf without end: restarts it when it ends. Each start reads the token again.

    kopf ends at half a line, at an ERROR other than 410, at a 410 instead of a stream, and where it is forbidden to watch.
    """
    failures, line, clock = 0, RepeatedLine(log), asyncio.get_running_loop().time
    while True:
        began = clock()
        try:
            await _kopf_once(registry, namespace, _settings(silence), end)
            text = "ended"
        except kopf.LoginError:
            text = (
                f"{server} refuses the operator's token or certificate (401 Unauthorized); it is read again at each start of the "
                "watches; see that its ServiceAccount, or the kubeconfig's user, is there and has not expired"
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        failures = 0 if clock() - began > LONGEST_PAUSE else failures + 1
        line.warn(f"kopf: {text}; restarting its watches")
        await asyncio.sleep(random.uniform(0.1, doubled(failures + 1, 0.5, LONGEST_PAUSE)))


def adds_words(record: logging.LogRecord) -> bool:
    """A filter of the log: False for the trace of a task of kopf that has failed, one for each; `_kopf` says why in a line.

    asyncio logs those of kopf's tasks that kopf forgets.
    """
    error = record.exc_info[1] if record.exc_info else None
    of_task = record.name.startswith("kopf.") and record.module == "aiotasks"
    return error is None or not (of_task or (record.name == "asyncio" and isinstance(error, kopf.LoginError)))


async def _kopf_once(
    registry: kopf.OperatorRegistry, namespace: str, settings: kopf.OperatorSettings, end: Callable[[], None]
) -> None:
    """Runs kopf's tasks once.

    `kopf.operator` is not used: it cancels every younger task of the process when it ends.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not namespace,
        namespaces=(namespace,) * bool(namespace),
    )
    _at_signals(end)  # kopf has just taken them for this run of it: they would be lost between two runs
    await _until_one_ends(tasks)


async def _add_jobs_of_pods(cluster: KubernetesCluster, namespace: str, add: AddKey) -> None:
    async for change in cluster.watch("Pod", namespace):
        meta = change.object["metadata"]
        if job := (meta.get("labels") or {}).get(LABEL_JOB):
            add((meta["namespace"], job))


async def _add_jobs_at_quarantines(cluster: KubernetesCluster, namespace: str, add: AddKey) -> None:
    """Every job: pods of any may wait for the node."""
    async for _ in cluster.watch("NodeQuarantine", ""):
        for job in await cluster.list("TrainingJob", namespace):
            add((job["metadata"]["namespace"], job["metadata"]["name"]))


def _registry(cluster: KubernetesCluster, access: Access, add: AddKey) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return connection_info(access)

    async def on_event(event: Any, **_: Any) -> None:
        """Puts the object into the cache first: the pass that follows must find it there."""
        change = WatchEvent("DELETED" if event["type"] == "DELETED" else "MODIFIED", _plain(event["object"]))
        if cluster.note(change):  # False for our own write
            for key in await _affected_jobs(cluster, change.object):
                add(key)

    kopf.on.login(registry=registry)(log_in)
    for kind in ALWAYS:
        kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=kind.plural)(on_event)
    return registry


async def _affected_jobs(cluster: KubernetesCluster, item: Manifest) -> list[Key]:
    """The job itself; for another kind the jobs that read the object. A job that is there before its mix follows with that."""
    kind, namespace, name = item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]
    if kind == "TrainingJob":
        return [(namespace, name)]
    jobs, mixes = await cluster.list("TrainingJob", namespace), await cluster.list("DataMix", namespace)
    return [(namespace, job["metadata"]["name"]) for job in jobs if reads(job, kind, name, mixes)]


def _plain(body: Any) -> Manifest:
    """A plain dictionary: kopf may pass read-only views."""
    return {**body, "metadata": {**body["metadata"]}}


class _Backoffs:
    """Between kopf's attempts of a request, without end: after the last one kopf would stop."""

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1, 2, 4, 8), repeat(LONGEST_PAUSE))


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler asks what has changed since the last time: kopf would copy each object twice to know."""

    def build(self, *, body: Any, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: Any) -> None:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        pass


def _settings(silence: float) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.error_backoffs = _Backoffs()
    settings.watching.inactivity_timeout = silence
    settings.posting.enabled = False  # events are ours: stable reasons, after the status write
    settings.peering.standalone = True  # a Lease decides which operator acts, not kopf's peering
    settings.process.ultimate_exiting_timeout = None  # else a run that ends kills this process ten minutes later
    settings.scanning.disabled = True  # no rights on namespaces and CRDs; new CRDs need a restart
    settings.watching.chunk_size = 500
    return settings


@dataclass(frozen=True, kw_only=True)
class _ConnectionInfo(kopf.ConnectionInfo):
    """Connects as the operator's own requests do: kopf's way writes keys into files, and knows no name of a certificate."""

    trust: Trust

    def as_ssl_context(self) -> ssl.SSLContext:
        return self.trust.context()


def connection_info(access: Access) -> kopf.ConnectionInfo:
    """What kopf connects with: the server, the rights and the trust of the operator's own requests."""
    scheme, _, token = access.authorization().partition(" ")
    return _ConnectionInfo(
        server=access.url,
        scheme=scheme if token else None,
        token=token or None,
        proxy_url=access.proxy,
        trust=access.trust,
    )
