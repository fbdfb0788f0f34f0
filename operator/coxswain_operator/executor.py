"""Executes a decision: statuses first, then objects in parallel, pods, and all else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from coxswain.errors import Refused
from coxswain.wire import Fault
from coxswain_operator.cluster import AlreadyExists, Cluster, JobControl
from coxswain_operator.reconcile.actions import (  # fmt: skip
    Action,
    CheckpointAndStop,
    Create,
    CreatePod,
    Decision,
    Delete,
    LeaveQueue,
    WriteStatus,
)
from coxswain_operator.slow_start import Call, SlowStartBatch, interleave
from coxswain_operator.views import Event, Manifest

QUOTA = "exceeded quota"  # how the API server's refusal says it; it has no reason of its own
OVERLAP_SECONDS = 0.5  # of deleting pods before the next pass: by then some successors can be created


class ActionExecutor:
    """Executes decisions on one cluster with at most `at_once` requests at a time."""

    def __init__(self, cluster: Cluster, control: JobControl, at_once: int) -> None:
        self._cluster, self._control, self._at_once = cluster, control, at_once
        self._rejections: dict[_Attempt, Fault] = {}
        self._workers: dict[str, int] = {}  # by the job's uid, during a restart

    def rejection(self, job: Manifest) -> Fault | None:
        """The refusal of the last child of the job that the cluster did not take."""
        return self._rejections.get(_attempt(job))

    async def execute(self, job: Manifest, decision: Decision) -> bool:
        """Executes all actions in their order. False: a result was unexpected; observe again soon."""
        deletes = decision.of(Delete)
        objects = [*(d for d in deletes if not _is_pod(d)), *decision.of(Create)]
        done = [await self._execute_one(job, action) for action in decision.of(WriteStatus)]
        done.append(await self._execute_together(job, objects))
        done.append(await self._execute_pods(job, [d for d in deletes if _is_pod(d)], decision.of(CreatePod)))
        done += [await self._execute_one(job, action) for action in decision.of(LeaveQueue, CheckpointAndStop, Event)]
        return all(done)

    async def _execute_pods(self, job: Manifest, deletes: Sequence[Action], creates: Sequence[Action]) -> bool:
        """Interleaves deletions and creations; after OVERLAP_SECONDS the next pass does the rest."""
        uid, seconds = job["metadata"]["uid"], OVERLAP_SECONDS if deletes else float("inf")
        calls = self._calls(job, interleave(deletes, creates))
        batch = SlowStartBatch(calls, self._at_once, seconds, self._workers.pop(uid, 1))
        smooth = await _run(batch)
        if smooth and deletes and creates:  # the next pass continues with as many
            self._workers[uid] = batch.workers
        return smooth

    async def _execute_together(self, job: Manifest, actions: Sequence[Action]) -> bool:
        return await _run(SlowStartBatch(self._calls(job, actions), self._at_once))

    def _calls(self, job: Manifest, actions: Iterable[Action]) -> list[Call]:
        return [partial(self._execute_one, job, action) for action in actions]

    async def _execute_one(self, job: Manifest, action: Action) -> bool:
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
            case Event():
                await self._cluster.publish(job, action)
        return True

    async def _create(self, job: Manifest, manifest: Manifest) -> bool:
        """The name may still be terminating: then the next pass retries.

        A refusal ends the job, except by a quota: room may appear later.
        """
        attempt = _attempt(job)
        try:
            await self._cluster.create(manifest)
        except AlreadyExists:
            return False
        except Refused as error:
            self._rejections[attempt] = Fault(error.reason, error.message, retryable=QUOTA in error.message)
            raise _Rejected from error
        if attempt in self._rejections and self._rejections[attempt].retryable:
            del self._rejections[attempt]
        return True


async def _run(batch: SlowStartBatch) -> bool:
    try:
        return await batch.run()
    except _Rejected:
        return False


_Attempt = tuple[str, int]  # uid of the job, number of the attempt


def _attempt(job: Manifest) -> _Attempt:
    return job["metadata"]["uid"], int((job.get("status") or {}).get("attempt", 0))


class _Rejected(Exception):
    """The cluster refuses this child. The next pass decides about it."""


def _is_pod(action: Action) -> bool:
    return isinstance(action, Delete) and action.kind == "Pod"
