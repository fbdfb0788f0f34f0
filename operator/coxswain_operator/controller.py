"""The I/O around reconcile: one pass observes, decides and executes, one at a time for each job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from coxswain.names import LABEL_JOB_UID
from coxswain.wire import JobReport
from coxswain_operator.children import KINDS
from coxswain_operator.children.configuration import secret_name
from coxswain_operator.clock import SteadyClock
from coxswain_operator.cluster import Cluster, JobControl
from coxswain_operator.executor import ActionExecutor
from coxswain_operator.pod_decoding import child_view, with_nodes
from coxswain_operator.reconcile import queueing, reconcile
from coxswain_operator.reconcile.actions import Create, CreatePod, Decision, Delete, Observed, RequeueAt, WriteStatus
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import read_status
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest, PodView
from coxswain_operator.workqueue import RequeueDelay

WATCHED = ("TrainingJob", "Pod", "DataSource", "DataMix", "ParallelismPolicy")
RETRY_SECONDS = 1.0  # after a pass that failed half-way
QUOTA_SECONDS = 10.0  # between two attempts to create a child that a quota refuses
QUIET_FACTOR = 10.0  # a pass that changed nothing is followed by a pause of so many times its cost
RESYNC_SECONDS = 600.0  # between passes over a finished job


class Controller:
    """Runs reconcile for jobs of one cluster.

    Watches only trigger passes. Every pass reads the current lists, so a watch that lags, repeats
    or loses events costs time and nothing else. A status write based on an older version ends the
    pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        control: JobControl,
        clock: Callable[[], float] | None = None,
        settings: Settings | None = None,
        poll_seconds: float = 1.0,
        on_report: Callable[[Manifest, JobReport | None], None] | None = None,
    ) -> None:
        """`on_report` gets job and report at every pass, for progress. Default clock: SteadyClock."""
        self._cluster, self._control, self._clock = cluster, control, clock or SteadyClock()
        self._settings = settings or Settings()
        self._poll_seconds, self._on_report = poll_seconds, on_report
        self._executor = ActionExecutor(cluster, control, self._settings.at_once)

    async def reconcile_job(self, namespace: str, name: str) -> RequeueDelay | None:
        """One pass; returns the delay after it, or None: no such job. Raises as `pass_once`."""
        began = time.thread_time()  # CPU time: waiting for a slow server does not lengthen the delay
        observed = await self.observe(namespace, name)
        if observed is None:
            await self._release_orphans(namespace, name)
            return None
        decision = self._decide(observed)
        cost = time.thread_time() - began
        most = await self._execute(observed, decision)
        return RequeueDelay(cost if decision.of(*_WRITES) else QUIET_FACTOR * cost, most)

    async def _release_orphans(self, namespace: str, name: str) -> None:
        """Releases pods of a deleted job that a queue keeps; the cluster removes all else."""
        for action in queueing.release_groups(await self._cluster.orphans(namespace, name)):
            await self._cluster.leave_queue(namespace, action.group, action.pod)

    async def pass_once(self, namespace: str, name: str) -> Decision | None:
        """Observes, decides and executes once; None: no such job. Raises the cluster's errors."""
        observed = await self.observe(namespace, name)
        if observed is None:
            return None
        decision = self._decide(observed)
        await self._executor.execute(observed.job, decision)
        return decision

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """The current input of reconcile; None: no such job."""
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
            rejection=self._executor.rejection(job),
            fresh_token=secrets.token_urlsafe(32),
        )

    async def _children(self, kind: str, job: Manifest) -> list[Manifest]:
        """Secrets are read by name only, so that the operator needs no right to list them."""
        meta = job["metadata"]
        if kind != "Secret":
            return await self._cluster.list(kind, meta["namespace"], {LABEL_JOB_UID: meta["uid"]})
        secret = await self._cluster.get(kind, meta["namespace"], secret_name(job))
        ours = secret is not None and (secret["metadata"].get("labels") or {}).get(LABEL_JOB_UID) == meta["uid"]
        return [secret] if secret is not None and ours else []

    async def _pods(self, job: Manifest) -> tuple[PodView, ...]:
        """Adds the conditions of nodes only where a decision needs them.

        Nodes are many, and reading them needs a cluster-wide right.
        """
        meta = job["metadata"]
        pods = await self._cluster.pod_views(meta["namespace"], meta["uid"])
        asked = any(rule.on_node_conditions for rule in read_spec(job).failure_policy.rules)
        if not asked and not any(p.deleting for p in pods):
            return tuple(pods)
        nodes = await self._cluster.nodes()
        return tuple(pods) if nodes is None else with_nodes(pods, nodes)

    async def _report(self, job: Manifest) -> JobReport | None:
        report = None if read_status(job).ended else await self._control.report(job)
        if self._on_report is not None:
            self._on_report(job, report)
        return report

    def _decide(self, observed: Observed) -> Decision:
        return reconcile(observed, self._clock(), self._settings)

    async def reconcile_observed(self, observed: Observed) -> float:
        """Decides and executes; returns the seconds until the next pass at the latest."""
        return await self._execute(observed, self._decide(observed))

    async def _execute(self, observed: Observed, decision: Decision) -> float:
        """Returns the seconds until the next pass at the latest."""
        smooth = await self._executor.execute(observed.job, decision)
        if decision.of(*_WRITES):
            refused = observed.rejection and self._executor.rejection(observed.job)
            return 0.0 if smooth else QUOTA_SECONDS if refused else RETRY_SECONDS
        requeues = [a.time - self._clock() for a in decision.actions if isinstance(a, RequeueAt)]
        poll = RESYNC_SECONDS if is_finished(observed) else self._poll_seconds
        return max(0.0, min([poll, *requeues]))


_WRITES = (WriteStatus, Create, CreatePod, Delete)


def is_finished(observed: Observed) -> bool:
    """The job has ended and its pods are gone."""
    return read_status(observed.job).ended and not any(p.is_active for p in observed.pods)
