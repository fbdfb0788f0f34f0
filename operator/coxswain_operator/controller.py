"""The shell around reconcile: observes, decides and executes, one pass at a time for each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from coxswain.names import CONTROLLER, LABEL_JOB_UID
from coxswain.wire import JobReport
from coxswain_operator.children import kinds
from coxswain_operator.children.common import controller_of
from coxswain_operator.children.job_token import TokenKeys
from coxswain_operator.children.scheduling import has_minimum
from coxswain_operator.clock import SteadyClock
from coxswain_operator.cluster import Cluster, Denied, JobControl
from coxswain_operator.executor import ActionExecutor
from coxswain_operator.node_decoding import quarantine_view, standing
from coxswain_operator.pod_decoding import child_view, holder_view, with_nodes
from coxswain_operator.reconcile import live_size, queueing, reconcile
from coxswain_operator.reconcile.actions import (
    Create,
    CreatePod,
    Decision,
    Delete,
    Observed,
    RequeueAt,
    Sizing,
    WriteStatus,
)
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import read_status
from coxswain_operator.refusals import QUOTA
from coxswain_operator.settings import Settings
from coxswain_operator.sightings import Sightings
from coxswain_operator.views import AdmissionView, HolderView, Manifest, PodView, QuarantineView, retry_requested
from coxswain_operator.workqueue import RequeueDelay

WATCHED = ("TrainingJob", "Pod", "DataSource", "DataMix", "ParallelismPolicy")
RETRY_SECONDS = 1.0  # after a pass that failed half-way
QUOTA_SECONDS = 10.0  # between two tries to create what a quota leaves no room for, or whose name another owner holds
QUIET_FACTOR = 10.0  # times its own cost: the delay after a pass that found nothing to do
MAX_HOLDERS = 5  # of taken names that one pass looks at
RESYNC_SECONDS = 600.0  # between passes over a finished job


class Controller:
    """Runs reconcile for jobs of one cluster.

    Watches only start passes. Every pass reads current lists, so a watch that lags, repeats or
    loses events costs only time. A status write based on an older read ends the pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        control: JobControl,
        clock: Callable[[], float] | None = None,
        settings: Settings | None = None,
        poll_seconds: float = 1.0,
        on_report: Callable[[Manifest, JobReport | None], None] | None = None,
        keys: TokenKeys | None = None,
    ) -> None:
        """`on_report` gets job and report at every pass, for progress; no `clock`: a SteadyClock."""
        self._keys = keys or TokenKeys()
        self._cluster, self._control, self._clock = cluster, control, clock or SteadyClock()
        self._settings = settings or Settings()
        self._poll_seconds, self._on_report = poll_seconds, on_report
        self._executor = ActionExecutor(cluster, control, self._settings.at_once)
        self._sightings = Sightings()

    async def reconcile_job(self, namespace: str, name: str) -> RequeueDelay | None:
        """Runs one pass; returns the delay until the next. Raises as `pass_once`; None: no such job
        of this controller's."""
        began = time.thread_time()  # CPU time: a wait for a slow server or a busy machine needs no rest
        observed = await self.observe(namespace, name)
        if observed is None:
            if await self._cluster.get("TrainingJob", namespace, name) is None:
                self._executor.forget(namespace, name)
                await self._release_orphans(namespace, name)
            return None
        decision = self._decide(observed)
        cost = time.thread_time() - began
        most = await self._execute(observed, decision)
        return RequeueDelay(cost if decision.of(*_WRITES) else QUIET_FACTOR * cost, most)

    async def _release_orphans(self, namespace: str, name: str) -> None:
        """Releases pods that a queue keeps; the cluster removes all else of a deleted job."""
        for action in queueing.release_groups(await self._cluster.orphans(namespace, name)):
            await self._cluster.leave_queue(namespace, action.group, action.pod, action.uid)

    async def pass_once(self, namespace: str, name: str) -> Decision | None:
        """Observes, decides and executes once. Raises what the cluster raises; None: no such job."""
        observed = await self.observe(namespace, name)
        if observed is None:
            return None
        decision = self._decide(observed)
        await self._executor.execute(observed.job, decision)
        return decision

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """Reads everything that reconcile decides on; None: no such job, or another controller's."""
        job = await self._cluster.get("TrainingJob", namespace, name)
        if job is None or self._settings.managed_by not in ("", job["spec"].get("managedBy") or CONTROLLER):
            return None
        report, quarantines = await self._report(job), await self._quarantines()
        return Observed(
            job=job,
            sources=tuple(await self._cluster.list("DataSource", namespace)),
            mixes=tuple(await self._cluster.list("DataMix", namespace)),
            policies=tuple(await self._cluster.list("ParallelismPolicy", namespace)),
            pods=await self._pods(job),
            children=tuple([child_view(c) for kind in kinds(self._settings) for c in await self._children(kind, job)]),
            report=report,
            nodes=await self._cluster.nodes() if _needs_nodes(report, quarantines) else None,
            rejection=self._executor.refusals(job).rejection,
            quarantine_refusal=self._executor.refusals(job).quarantine,
            holders=await self._holders(job),
            leftovers=await self._leftovers(job),
            pod_security=await self._cluster.pod_security(namespace),
            admissions=await self._admissions(job),
            tokens=self._keys.tokens(job),
            quarantines=quarantines,
            sizing=await self._sizing(job, report),
        )

    async def _quarantines(self) -> tuple[QuarantineView, ...]:
        """None without the right to list them, which the cluster logs once: jobs go on without."""
        found: list[Manifest] = []
        if self._settings.quarantine:
            with suppress(Denied):
                found = await self._cluster.list("NodeQuarantine", "")
        return tuple(map(quarantine_view, standing(found)))

    async def _admissions(self, job: Manifest) -> tuple[AdmissionView, ...] | None:
        """Of a job that Kueue may admit with fewer trainers."""
        meta = job["metadata"]
        found = await self._cluster.admissions(meta["namespace"], meta["uid"]) if has_minimum(job) else None
        return None if found is None else tuple(found)

    async def _sizing(self, job: Manifest, report: JobReport | None) -> Sizing | None:
        trainers = live_size.wanted(job, report, self._clock())
        return Sizing(trainers, await self._control.resize(job, trainers)) if trainers else None

    async def _children(self, kind: str, job: Manifest) -> list[Manifest]:
        meta = job["metadata"]
        found = await self._cluster.list(kind, meta["namespace"], {LABEL_JOB_UID: meta["uid"]})
        return [c for c in found if controller_of(c).get("uid") == meta["uid"]]

    async def _holders(self, job: Manifest) -> tuple[HolderView, ...]:
        """What holds names that the last pass could not take; of many only the first ones."""
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        taken = self._executor.refusals(job).taken[:MAX_HOLDERS]
        found = [await self._cluster.find(kind, namespace, name) for kind, name in taken]
        return tuple(holder_view(h, job) for h in found if h is not None and controller_of(h).get("uid") != uid)

    async def _leftovers(self, job: Manifest) -> tuple[PodView, ...]:
        """Pods of earlier jobs of the same name that hold a name or fill a quota, or that a queue keeps: no pass over their own
        job ends them."""
        meta, refusals = job["metadata"], self._executor.refusals(job)
        found = await self._cluster.orphans(meta["namespace"], meta["name"], meta["uid"])
        hold_names = any(kind == "Pod" for kind, _ in refusals.taken)
        fill = refusals.rejection is not None and refusals.rejection.reason == QUOTA
        return await self._with_nodes([pod for pod in found if hold_names or fill or pod.group])

    async def _pods(self, job: Manifest) -> tuple[PodView, ...]:
        """Adds conditions of nodes only where they matter: it needs a cluster-wide right."""
        meta = job["metadata"]
        pods = await self._cluster.pod_views(meta["namespace"], meta["uid"])
        asked = any(rule.on_node_conditions for rule in read_spec(job).failure_policy.rules)
        return await self._with_nodes(pods, asked)

    async def _with_nodes(self, pods: Sequence[PodView], asked: bool = False) -> tuple[PodView, ...]:
        dated = self._sightings.dated(pods, self._clock())
        if not asked and not any(p.deleting or p.disruption for p in pods):
            return dated
        nodes = await self._cluster.nodes()
        return dated if nodes is None else with_nodes(dated, nodes)

    async def _report(self, job: Manifest) -> JobReport | None:
        report = None if read_status(job).ended else await self._control.report(job)
        if self._on_report is not None:
            self._on_report(job, report)
        return report

    def _decide(self, observed: Observed) -> Decision:
        return reconcile(observed, self._clock(), self._settings)

    async def reconcile_observed(self, observed: Observed) -> float:
        """Decides and executes; returns the longest delay until the next pass, in seconds."""
        return await self._execute(observed, self._decide(observed))

    async def _execute(self, observed: Observed, decision: Decision) -> float:
        """Returns the longest delay until the next pass, in seconds."""
        smooth = await self._executor.execute(observed.job, decision)
        if not smooth:
            return QUOTA_SECONDS if self._is_stuck(observed) else RETRY_SECONDS
        if decision.of(*_WRITES):
            return 0.0
        wakes = [a.time - self._clock() for a in decision.actions if isinstance(a, RequeueAt)]
        rest = RESYNC_SECONDS if is_finished(observed) else self._poll_seconds
        return max(0.0, min([rest, *wakes]))

    def _is_stuck(self, observed: Observed) -> bool:
        """The pass before was refused something, or found a name that another owner holds; and so was this one."""
        now = self._executor.refusals(observed.job)
        held = any(not holder.leftover for holder in observed.holders)
        return bool((observed.rejection and now.rejection) or (held and now.taken))


_WRITES = (WriteStatus, Create, CreatePod, Delete)


def _needs_nodes(report: JobReport | None, quarantines: Iterable[QuarantineView]) -> bool:
    """The job asks for another one, or a quarantine ends once another node has its node's name."""
    return (report is not None and report.replace_node is not None) or any(q.node_uid for q in quarantines)


def is_finished(observed: Observed) -> bool:
    """The job has ended for good and none of its pods runs."""
    ended = read_status(observed.job).ended and not retry_requested(observed.job)
    return ended and not any(p.occupies for p in observed.pods)
