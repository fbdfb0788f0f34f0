"""The shell around reconcile: looks, decides, does, in that order, one pass at a time for each job."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from coxswain.errors import Refused, Retryable
from coxswain.names import LABEL_JOB_UID
from coxswain.wire import Fault, JobReport
from coxswain_operator.children import KINDS
from coxswain_operator.cluster import AlreadyExists, Cluster, Conflict, Happening, JobControl, Manifest
from coxswain_operator.observe import Pairs, child_view, node_conditions, pod_view
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import read_status
from coxswain_operator.reconcile.values import (
    Action,
    CheckpointAndStop,
    Create,
    Decision,
    Delete,
    Observed,
    WakeAt,
    WriteStatus,
)  # fmt: skip
from coxswain_operator.settings import Settings

log = logging.getLogger(__name__)

WATCHED = ("TrainingJob", "Pod", "DataSource", "DataMix", "ParallelismPolicy")
COALESCE_SECONDS = 0.05
RETRY_SECONDS = 1.0  # after a pass that failed half-way
RESYNC_SECONDS = 600.0  # between looks at a job that is over


class Controller:
    """Runs reconcile for jobs of one cluster.

    Watches are only a doorbell. Every pass looks anew at lists as of now, so a watch that lags, repeats or loses
    events costs time and nothing else; a status write that was based on an older look ends the pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        control: JobControl,
        clock: Callable[[], float] = time.time,
        settings: Settings | None = None,
        poll_seconds: float = 1.0,
        told: Callable[[Manifest, JobReport | None], None] | None = None,
    ) -> None:
        """`told` hears of the job and its coordinator's report at every pass: for live progress."""
        self._cluster, self._control, self._clock = cluster, control, clock
        self._settings = settings or Settings()
        self._poll_seconds, self._told = poll_seconds, told
        self._refused: dict[str, Fault] = {}  # by the job's uid

    async def run_job(self, namespace: str, name: str, until_terminal: bool = True) -> Manifest | None:
        """Passes until the job is over and its pods are gone; returns it as it then is, None if it does not exist.

        Not `until_terminal`: goes on until the job itself is gone.
        """
        async with _doorbell(self._cluster, namespace) as bell:
            while True:
                try:
                    observed = await self.look(namespace, name)
                    if observed is None:
                        return None
                    if until_terminal and _over(observed):
                        return observed.job
                    delay = await self._pass(observed)
                except (Conflict, Retryable, OSError) as error:
                    log.info("%s/%s: %s: %s; looking again", namespace, name, type(error).__name__, error)
                    delay = RETRY_SECONDS
                await _rest(bell, delay)

    async def turn(self, namespace: str, name: str) -> float | None:
        """One pass; after how many seconds to look again at the latest. Raises as `pass_once`; None: there is no such job."""
        observed = await self.look(namespace, name)
        return None if observed is None else await self._pass(observed)

    async def pass_once(self, namespace: str, name: str) -> Decision | None:
        """One look, one decision, and its actions. Raises what the cluster raises; None: there is no such job."""
        observed = await self.look(namespace, name)
        if observed is None:
            return None
        decision = reconcile(observed, self._clock(), self._settings)
        await self._do_all(observed.job, decision)
        return decision

    async def look(self, namespace: str, name: str) -> Observed | None:
        """Everything that reconcile wants to know, as of now."""
        jobs = await self._cluster.list("TrainingJob", namespace)
        job = next((j for j in jobs if j["metadata"]["name"] == name), None)
        if job is None:
            return None
        mine = {LABEL_JOB_UID: job["metadata"]["uid"]}
        pods, nodes = await self._cluster.list("Pod", namespace, mine), await self._nodes(job)
        children = [c for kind in KINDS for c in await self._cluster.list(kind, namespace, mine)]
        return Observed(
            job=job,
            sources=tuple(await self._cluster.list("DataSource", namespace)),
            mixes=tuple(await self._cluster.list("DataMix", namespace)),
            policies=tuple(await self._cluster.list("ParallelismPolicy", namespace)),
            pods=tuple(pod_view(p, nodes) for p in pods),
            children=tuple(child_view(c) for c in children),
            report=await self._report(job),
            refused=self._refused.get(job["metadata"]["uid"]),
            fresh_token=secrets.token_urlsafe(32),
        )

    async def _report(self, job: Manifest) -> JobReport | None:
        report = None if read_status(job).ended else await self._control.report(job)
        if self._told is not None:
            self._told(job, report)
        return report

    async def _nodes(self, job: Manifest) -> dict[str, Pairs]:
        """Only where a rule asks for them: nodes are many, and reading them needs a cluster-wide right."""
        if not any(rule.on_node_conditions for rule in read_spec(job).failure_policy.rules):
            return {}
        return node_conditions(await self._cluster.list("Node", ""))

    async def _pass(self, observed: Observed) -> float:
        """Decides and does; returns after how many seconds to look again at the latest."""
        decision = reconcile(observed, self._clock(), self._settings)
        smooth = await self._do_all(observed.job, decision)
        if decision.of(WriteStatus, Create, Delete):
            return 0.0 if smooth else RETRY_SECONDS
        wakes = [a.time - self._clock() for a in decision.actions if isinstance(a, WakeAt)]
        rest = (
            RESYNC_SECONDS if _over(observed) else self._poll_seconds
        )  # of a job that is over there is nothing to poll
        return max(0.0, min([rest, *wakes]))

    async def _do_all(self, job: Manifest, decision: Decision) -> bool:
        """In order. False: something was not as expected."""
        return all([await self._do(job, action) for action in decision.actions])

    async def _do(self, job: Manifest, action: Action) -> bool:
        namespace = job["metadata"]["namespace"]
        match action:
            case WriteStatus(kind, name, status, version):
                await self._cluster.patch_status(kind, namespace, name, status, version)
            case Delete(kind, name, uid):
                await self._cluster.delete(kind, namespace, name, uid)
            case Create(manifest):
                return await self._create(job, manifest)
            case CheckpointAndStop(reason, at_step):
                return await self._control.checkpoint_and_stop(job, reason, at_step)
            case Happening():
                await self._cluster.publish(job, action)
            case WakeAt():
                pass
        return True

    async def _create(self, job: Manifest, manifest: Manifest) -> bool:
        """A name that is taken is a leftover on its way out: the next look will tell. A refusal ends the job."""
        try:
            await self._cluster.create(manifest)
        except AlreadyExists:
            return False
        except Refused as error:
            self._refused[job["metadata"]["uid"]] = Fault(error.reason, error.message)
            return False
        return True


def _over(observed: Observed) -> bool:
    return read_status(observed.job).ended and not any(p.live for p in observed.pods)


async def _rest(bell: asyncio.Event, delay: float) -> None:
    """Until something changes, at most `delay` seconds; then a moment more, so that changes that come together are one pass."""
    with suppress(TimeoutError):
        await asyncio.wait_for(bell.wait(), delay)
    await asyncio.sleep(min(delay, COALESCE_SECONDS))
    bell.clear()


@asynccontextmanager
async def _doorbell(cluster: Cluster, namespace: str) -> AsyncIterator[asyncio.Event]:
    """An event that every change of a watched object sets."""
    bell = asyncio.Event()

    async def listen(kind: str) -> None:
        async for _ in cluster.watch(kind, namespace):
            bell.set()

    tasks = [asyncio.create_task(listen(kind), name=f"watch {kind}") for kind in WATCHED]
    try:
        yield bell
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
