"""The shell around reconcile: looks, decides, does, in that order, one pass at a time for each job."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from coxswain.errors import Refused, Retryable
from coxswain.names import LABEL_JOB_UID
from coxswain.wire import Fault, JobReport
from coxswain_operator.acting import Crew, Deed, alternately
from coxswain_operator.children import KINDS
from coxswain_operator.children.configuration import secret_name
from coxswain_operator.cluster import AlreadyExists, Cluster, Conflict, Happening, JobControl, Manifest
from coxswain_operator.observe import child_view, with_nodes
from coxswain_operator.reconcile import queueing, reconcile
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import read_status
from coxswain_operator.reconcile.values import (
    Action,
    CheckpointAndStop,
    Create,
    CreatePod,
    Decision,
    Delete,
    LeaveQueue,
    Observed,
    PodView,
    WakeAt,
    WriteStatus,
)  # fmt: skip
from coxswain_operator.settings import Settings
from coxswain_operator.steady import SteadyClock

log = logging.getLogger(__name__)

WATCHED = ("TrainingJob", "Pod", "DataSource", "DataMix", "ParallelismPolicy")
COALESCE_SECONDS = 0.05
RETRY_SECONDS = 1.0  # after a pass that failed half-way
QUOTA = "exceeded quota"  # how the API server's refusal says it; it has no reason of its own
QUOTA_SECONDS = 10.0  # between two tries to create what a quota leaves no room for
OVERLAP_SECONDS = 0.5  # of deleting pods before a new look: some members' successors can be created by then
CALM = 10.0  # times its own cost passes between two passes that found nothing to do
RESYNC_SECONDS = 600.0  # between looks at a job that is over


@dataclass(frozen=True, slots=True)
class Rest:
    """Seconds between two passes over a job: `least` even if something changes, `most` even if nothing does."""

    least: float
    most: float


class Controller:
    """Runs reconcile for jobs of one cluster.

    Watches are only a doorbell. Every pass looks anew at lists as of now, so a watch that lags, repeats or loses
    events costs time and nothing else; a status write that was based on an older look ends the pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        control: JobControl,
        clock: Callable[[], float] | None = None,
        settings: Settings | None = None,
        poll_seconds: float = 1.0,
        told: Callable[[Manifest, JobReport | None], None] | None = None,
    ) -> None:
        """`told` hears of job and report at every pass, for progress; no `clock`: a steady one of its own."""
        self._cluster, self._control, self._clock = cluster, control, clock or SteadyClock()
        self._settings = settings or Settings()
        self._poll_seconds, self._told = poll_seconds, told
        self._refused: dict[str, Fault] = {}  # by the job's uid
        self._workers: dict[str, int] = {}  # likewise: of the restart that is under way

    async def run_job(self, namespace: str, name: str, leave: asyncio.Event | None = None) -> Manifest | None:
        """Passes until the job is over and its pods are gone; returns it as it then is, None if it does not exist.

        `leave`: once it is set, the pass under way is the last: a cancelled one may have written a status and told nobody.
        """
        leave = leave or asyncio.Event()
        async with _doorbell(self._cluster, namespace, leave) as bell:
            while not leave.is_set():
                try:
                    observed = await self.look(namespace, name)
                    if observed is None:
                        return None
                    if _over(observed):
                        return observed.job
                    delay = await self._pass(observed)
                except (Conflict, Retryable, OSError) as error:
                    log.info("%s/%s: %s: %s; looking again", namespace, name, type(error).__name__, error)
                    delay = RETRY_SECONDS
                await _rest(bell, delay)
            return await self._cluster.get("TrainingJob", namespace, name)

    async def turn(self, namespace: str, name: str) -> Rest | None:
        """One pass, and how long to rest after it. Raises as `pass_once`; None: there is no such job."""
        began = time.thread_time()  # work, not time: who waits for a slow server or a busy machine need not rest for it
        observed = await self.look(namespace, name)
        if observed is None:
            await self._let_go(namespace, name)
            return None
        decision = self._decide(observed)
        cost = time.thread_time() - began
        most = await self._carry_out(observed, decision)
        return Rest(cost if decision.of(*_WRITES) else CALM * cost, most)

    async def _let_go(self, namespace: str, name: str) -> None:
        """The cluster removes what a deleted job had, but for pods that a queue keeps."""
        for action in queueing.left(await self._cluster.orphans(namespace, name)):
            await self._cluster.leave_queue(namespace, action.group, action.pod)

    async def pass_once(self, namespace: str, name: str) -> Decision | None:
        """One look, one decision, and its actions. Raises what the cluster raises; None: there is no such job."""
        observed = await self.look(namespace, name)
        if observed is None:
            return None
        decision = self._decide(observed)
        await self._do_all(observed.job, decision)
        return decision

    async def look(self, namespace: str, name: str) -> Observed | None:
        """Everything that reconcile wants to know, as of now."""
        job = await self._cluster.get("TrainingJob", namespace, name)
        if job is None:
            return None
        return Observed(
            job=job,
            sources=tuple(await self._cluster.list("DataSource", namespace)),
            mixes=tuple(await self._cluster.list("DataMix", namespace)),
            policies=tuple(await self._cluster.list("ParallelismPolicy", namespace)),
            pods=await self._pods(job),
            children=tuple([child_view(c) for kind in KINDS for c in await self._children(kind, job)]),
            report=await self._report(job),
            refused=self._refused.get(job["metadata"]["uid"]),
            fresh_token=secrets.token_urlsafe(32),
        )

    async def _children(self, kind: str, job: Manifest) -> list[Manifest]:
        """Secrets are only asked for by name: nobody should see those of others."""
        meta = job["metadata"]
        if kind != "Secret":
            return await self._cluster.list(kind, meta["namespace"], {LABEL_JOB_UID: meta["uid"]})
        secret = await self._cluster.get(kind, meta["namespace"], secret_name(job))
        ours = secret is not None and (secret["metadata"].get("labels") or {}).get(LABEL_JOB_UID) == meta["uid"]
        return [secret] if secret is not None and ours else []

    async def _pods(self, job: Manifest) -> tuple[PodView, ...]:
        """With their nodes' conditions only where those matter: nodes are many, and reading them needs a cluster-wide right."""
        meta = job["metadata"]
        pods = await self._cluster.pod_views(meta["namespace"], meta["uid"])
        asked = any(rule.on_node_conditions for rule in read_spec(job).failure_policy.rules)
        if not asked and not any(p.deleting for p in pods):
            return tuple(pods)
        nodes = await self._cluster.nodes()
        return tuple(pods) if nodes is None else with_nodes(pods, nodes)

    async def _report(self, job: Manifest) -> JobReport | None:
        report = None if read_status(job).ended else await self._control.report(job)
        if self._told is not None:
            self._told(job, report)
        return report

    def _decide(self, observed: Observed) -> Decision:
        return reconcile(observed, self._clock(), self._settings)

    async def _pass(self, observed: Observed) -> float:
        return await self._carry_out(observed, self._decide(observed))

    async def _carry_out(self, observed: Observed, decision: Decision) -> float:
        """Returns after how many seconds to look again at the latest."""
        smooth = await self._do_all(observed.job, decision)
        if decision.of(*_WRITES):
            refused = observed.job["metadata"]["uid"] in self._refused
            return 0.0 if smooth else QUOTA_SECONDS if refused and observed.refused else RETRY_SECONDS
        wakes = [a.time - self._clock() for a in decision.actions if isinstance(a, WakeAt)]
        rest = RESYNC_SECONDS if _over(observed) else self._poll_seconds  # of one that is over there is nothing to poll
        return max(0.0, min([rest, *wakes]))

    async def _do_all(self, job: Manifest, decision: Decision) -> bool:
        """Statuses in their order, then objects side by side, pods last, then all else. False: something was not as expected."""
        deletes = decision.of(Delete)
        objects = [*(d for d in deletes if not _is_pod(d)), *decision.of(Create)]
        done = [await self._do(job, action) for action in decision.of(WriteStatus)]
        done.append(await self._do_together(job, objects))
        done.append(await self._do_pods(job, [d for d in deletes if _is_pod(d)], decision.of(CreatePod)))
        done += [await self._do(job, action) for action in decision.of(LeaveQueue, CheckpointAndStop, Happening)]
        return all(done)

    async def _do_pods(self, job: Manifest, deletes: Sequence[Action], creates: Sequence[Action]) -> bool:
        """While pods are deleted, the successors of those that have gone should start: so the rest is left to the next look."""
        uid, seconds = job["metadata"]["uid"], OVERLAP_SECONDS if deletes else float("inf")
        deeds = self._deeds(job, alternately(deletes, creates))
        crew = Crew(deeds, self._settings.at_once, seconds, self._workers.pop(uid, 1))
        smooth = await _worked(crew)
        if smooth and deletes and creates:  # the next look goes on with as many
            self._workers[uid] = crew.workers
        return smooth

    async def _do_together(self, job: Manifest, actions: Sequence[Action]) -> bool:
        return await _worked(Crew(self._deeds(job, actions), self._settings.at_once))

    def _deeds(self, job: Manifest, actions: Iterable[Action]) -> list[Deed]:
        return [partial(self._do, job, action) for action in actions]

    async def _do(self, job: Manifest, action: Action) -> bool:
        namespace = job["metadata"]["namespace"]
        match action:
            case WriteStatus(kind, name, status, version):
                await self._cluster.patch_status(kind, namespace, name, status, version)
            case Delete(kind, name, uid, force):
                await self._cluster.delete(kind, namespace, name, uid, force)
            case Create(manifest) | CreatePod(manifest):
                return await self._create(job, manifest)
            case LeaveQueue(group, pod):
                await self._cluster.leave_queue(namespace, group, pod)
            case CheckpointAndStop(reason, at_step):
                return await self._control.checkpoint_and_stop(job, reason, at_step)
            case Happening():
                await self._cluster.publish(job, action)
        return True

    async def _create(self, job: Manifest, manifest: Manifest) -> bool:
        """A name that is taken is a leftover on its way out: the next look will tell.

        A refusal ends the job, but for that of a quota: what is used up now may be free later.
        """
        uid = job["metadata"]["uid"]
        try:
            await self._cluster.create(manifest)
        except AlreadyExists:
            return False
        except Refused as error:
            self._refused[uid] = Fault(error.reason, error.message, retryable=QUOTA in error.message)
            raise _Unacceptable from error
        if uid in self._refused and self._refused[uid].retryable:
            del self._refused[uid]
        return True


async def _worked(crew: Crew) -> bool:
    try:
        return await crew.work()
    except _Unacceptable:
        return False


class _Unacceptable(Exception):
    """The cluster will never take this child. The next look tells reconcile."""


_WRITES = (WriteStatus, Create, CreatePod, Delete)


def _is_pod(action: Action) -> bool:
    return isinstance(action, Delete) and action.kind == "Pod"


def _over(observed: Observed) -> bool:
    return read_status(observed.job).ended and not any(p.live for p in observed.pods)


async def _rest(bell: asyncio.Event, delay: float) -> None:
    """Until something changes, at most `delay` seconds; then a moment more, so that changes that come together are one pass."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay):
            await bell.wait()
    await asyncio.sleep(min(delay, COALESCE_SECONDS))
    bell.clear()


@asynccontextmanager
async def _doorbell(cluster: Cluster, namespace: str, leave: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """An event that every change of a watched object sets, and `leave`."""
    bell = asyncio.Event()

    async def listen_to_leave() -> None:
        await leave.wait()
        bell.set()

    async def listen(kind: str) -> None:
        async for _ in cluster.watch(kind, namespace):
            bell.set()

    tasks = [asyncio.create_task(listen(kind), name=f"watch {kind}") for kind in WATCHED]
    tasks.append(asyncio.create_task(listen_to_leave()))
    try:
        yield bell
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
