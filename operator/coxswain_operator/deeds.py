"""Carrying out what reconcile decided: statuses first, objects side by side, pods last, then all else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from coxswain.errors import Refused
from coxswain.wire import Fault
from coxswain_operator.acting import Crew, Deed, alternately
from coxswain_operator.cluster import AlreadyExists, Cluster, Happening, JobControl, Manifest
from coxswain_operator.reconcile.values import (
    Action,
    CheckpointAndStop,
    Create,
    CreatePod,
    Decision,
    Delete,
    LeaveQueue,
    WriteStatus,
)  # fmt: skip

QUOTA = "exceeded quota"  # how the API server's refusal says it; it has no reason of its own
OVERLAP_SECONDS = 0.5  # of deleting pods before a new look: some members' successors can be created by then


class Hands:
    """What reconcile decided about jobs of one cluster, done by at most `at_once` requests at a time."""

    def __init__(self, cluster: Cluster, control: JobControl, at_once: int) -> None:
        self._cluster, self._control, self._at_once = cluster, control, at_once
        self._refused: dict[str, Fault] = {}  # by the job's uid
        self._workers: dict[str, int] = {}  # likewise: of the restart that is under way

    def refused(self, job: Manifest) -> Fault | None:
        """What the cluster said to the last child of the job that it did not take."""
        return self._refused.get(job["metadata"]["uid"])

    async def do_all(self, job: Manifest, decision: Decision) -> bool:
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
        crew = Crew(deeds, self._at_once, seconds, self._workers.pop(uid, 1))
        smooth = await _worked(crew)
        if smooth and deletes and creates:  # the next look goes on with as many
            self._workers[uid] = crew.workers
        return smooth

    async def _do_together(self, job: Manifest, actions: Sequence[Action]) -> bool:
        return await _worked(Crew(self._deeds(job, actions), self._at_once))

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


def _is_pod(action: Action) -> bool:
    return isinstance(action, Delete) and action.kind == "Pod"
