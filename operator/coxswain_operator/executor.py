"""Executes a decision: the job's status first, then events, objects in parallel, pods, and all else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial

from coxswain.errors import Refused, Retryable
from coxswain.names import LABEL_JOB_UID
from coxswain.wire import Fault
from coxswain_operator.children.workload import KIND as WORKLOAD
from coxswain_operator.cluster import AlreadyExists, Cluster, Conflict, Denied, JobControl
from coxswain_operator.node_decoding import standing
from coxswain_operator.pass_refusals import JobKey, PassRefusals, Refusals, key_of
from coxswain_operator.reconcile.actions import (  # fmt: skip
    Action,
    CheckpointAndStop,
    Create,
    CreatePod,
    Decision,
    Delete,
    EndQuarantine,
    LeaveQueue,
    Quarantine,
    WriteStatus,
)
from coxswain_operator.refusals import UNAVAILABLE, fault_of
from coxswain_operator.repeated_line import RepeatedLine
from coxswain_operator.slow_start import Call, SlowStartBatch, interleave
from coxswain_operator.views import Event, Manifest

log = logging.getLogger(__name__)

BATCH_SECONDS = 30.0  # of creating pods before the next pass: one job must not keep others waiting on a slow server
OVERLAP_SECONDS = 0.5  # of deleting pods before the next pass: by then some successors can be created


class ActionExecutor:
    """Executes decisions on one cluster with at most `at_once` requests at a time."""

    def __init__(self, cluster: Cluster, control: JobControl, at_once: int) -> None:
        self._cluster, self._control, self._at_once = cluster, control, at_once
        self._refusals = Refusals()
        self._workers: dict[JobKey, int] = {}  # during a restart
        self._quarantining = asyncio.Lock()
        self._line = RepeatedLine(log)  # why the last quarantine could not be made or ended

    def refusals(self, job: Manifest) -> PassRefusals:
        """What the cluster did not take of the last pass."""
        return self._refusals.of(key_of(job))

    def forget(self, namespace: str, name: str) -> None:
        """Drops what is known of jobs of this name, which are gone."""
        self._refusals.forget(namespace, name)
        self._workers = {key: workers for key, workers in self._workers.items() if key[:2] != (namespace, name)}

    async def execute(self, job: Manifest, decision: Decision) -> bool:
        """Executes all actions in their order. False: a result was unexpected; observe again soon.

        Creates no pod before everything that pods need exists. Events follow the status at once: the next pass does not see
        again what they report. Other objects' statuses come last: what keeps one from being written must not stop the job.
        Where the server fails with a child, all else is done before Retryable is raised.
        """
        deletes, creates = decision.of(Delete), decision.of(Create)
        statuses = decision.of(WriteStatus)
        done = [await self._execute_one(job, action) for action in statuses if _is_of(job, action)]
        self._refusals.begin(key_of(job))
        done += [await self._execute_one(job, event) for event in decision.of(Event)]
        needed = [*(d for d in deletes if not _is_pod(d)), *(c for c in creates if not _is_budget(c))]
        done.append(ready := await self._execute_together(job, needed))
        pods = decision.of(CreatePod) if ready else ()
        done.append(await self._execute_pods(job, [d for d in deletes if _is_pod(d)], pods))
        done.append(await self._execute_together(job, [c for c in creates if _is_budget(c)]))
        for action in decision.of(LeaveQueue, CheckpointAndStop, Quarantine, EndQuarantine):
            done.append(await self._execute_together(job, [action]))
        done += [await self._execute_together(job, [action]) for action in statuses if not _is_of(job, action)]
        refusals = self.refusals(job)
        if (fault := refusals.rejection) is not None and fault.reason == UNAVAILABLE:
            raise Retryable(fault.message, refusals.after)
        return all(done)

    async def _execute_pods(self, job: Manifest, deletes: Sequence[Action], creates: Sequence[Action]) -> bool:
        """Interleaves deletions and creations; after OVERLAP_SECONDS or BATCH_SECONDS the next pass does the rest."""
        key, seconds = key_of(job), OVERLAP_SECONDS if deletes else BATCH_SECONDS
        calls = self._calls(job, interleave(deletes, creates))
        batch = SlowStartBatch(calls, self._at_once, seconds, self._workers.pop(key, 1))
        smooth = await _run(batch)
        # Nothing may stop deletions: a quota may wait for their room.
        if deletes and self.refusals(job).rejection is not None:
            await self._execute_together(job, deletes)
        if smooth and creates and (deletes or not batch.is_done):  # the next pass continues with as many
            self._workers[key] = batch.workers
        return smooth

    async def _execute_together(self, job: Manifest, actions: Sequence[Action]) -> bool:
        return await _run(SlowStartBatch(self._calls(job, actions), self._at_once))

    def _calls(self, job: Manifest, actions: Iterable[Action]) -> list[Call]:
        return [partial(self._execute_one, job, action) for action in actions]

    async def _execute_one(self, job: Manifest, action: Action) -> bool:
        namespace = job["metadata"]["namespace"]
        match action:
            case WriteStatus():
                await self._write_status(job, action)
            case Delete(kind, name, uid, force):
                call = self._cluster.delete(kind, namespace, name, uid, force)
                return await self._permitted(job, f"{kind} {name}", call)
            case Create(manifest):
                return await self._create(job, manifest)
            case CreatePod():
                return await self._create(job, self._manifest(job, action))
            case LeaveQueue(group, pod, uid):
                call = self._cluster.leave_queue(namespace, group, pod, uid)
                return await self._permitted(job, f"group {group}", call)
            case CheckpointAndStop(reason, at_step):
                return await self._control.checkpoint_and_stop(job, reason, at_step)
            case Quarantine():
                await self._quarantine(job, action)
            case EndQuarantine():
                await self._end_quarantine(job, action)
            case Event():
                await self._cluster.publish(job, action)
        return True

    async def _write_status(self, job: Manifest, action: WriteStatus) -> None:
        """What the server refuses of the job's own status fails the pass: nothing may be done that it does not account for."""
        namespace = job["metadata"]["namespace"]
        try:
            await self._cluster.patch_status(action.kind, namespace, action.name, action.status, action.version)
        except Refused as error:
            denied = Denied(error.reason, error.message)  # which ends no job
            fault = fault_of(f"the status of {action.kind} {action.name}", denied)
            if _is_of(job, action):
                text = f"{fault.reason}: {fault.message}; until then nothing is done for the job"
                await self._cluster.publish(job, Event("FailedUpdate", text, warning=True))
                raise
            self._refusals.set_fault(key_of(job), fault)
            raise _Rejected from error

    async def _quarantine(self, job: Manifest, action: Quarantine) -> None:
        """One at a time: another job's pass may have made one since this one looked."""
        async with self._quarantining:
            if await self._attempt(job, action.manifest["metadata"]["name"], self._make_within(action)):
                await self._cluster.publish(job, action.event)

    async def _make_within(self, action: Quarantine) -> bool:
        """None beyond the limit, so none where they cannot be counted."""
        found = standing(await self._cluster.list("NodeQuarantine", ""))
        made = [q for q in found if LABEL_JOB_UID in (q["metadata"].get("labels") or {})]
        if len(made) < action.limit:
            await self._cluster.create(action.manifest)
        return len(made) < action.limit

    async def _end_quarantine(self, job: Manifest, action: EndQuarantine) -> None:
        """Once: each job's pass sees that it is over."""
        async with self._quarantining:
            if await self._attempt(job, action.name, self._delete_standing(action)) and action.event is not None:
                await self._cluster.publish(job, action.event)

    async def _delete_standing(self, action: EndQuarantine) -> bool:
        found = standing(await self._cluster.list("NodeQuarantine", ""))
        if there := any(q["metadata"]["uid"] == action.uid for q in found):
            await self._cluster.delete("NodeQuarantine", "", action.name, action.uid)
        return there

    async def _attempt(self, job: Manifest, name: str, call: Awaitable[bool | None]) -> bool:
        """A node that cannot be quarantined, or admitted again, is no reason to stop a job: the next pass says why. What is
        refused in each pass is logged once."""
        try:
            return await call is not False
        except (AlreadyExists, Conflict, Refused, Retryable) as error:
            self._line.warn(f"quarantine: {error}")
            if not isinstance(error, AlreadyExists):  # which the next pass sees
                self._refusals.set_quarantine(key_of(job), f"NodeQuarantine {name}", error)
            return False

    def _manifest(self, job: Manifest, action: CreatePod) -> Manifest:
        """A template that passes every check and yet cannot be laid over a pod must not stop the job without a word."""
        try:
            return action.manifest
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"Pod {action.name} cannot be made of the job's templates: {type(error).__name__}: {error}"
            self._refusals.set_fault(key_of(job), Fault("TemplateUnusable", text, retryable=True))
            raise _Rejected from error

    async def _create(self, job: Manifest, manifest: Manifest) -> bool:
        """The next pass looks at what holds a name that is taken, and at a refusal."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            return await self._permitted(job, f"{kind} {name}", self._cluster.create(manifest))
        except AlreadyExists:
            if kind == "Secret":  # its name is made of its token
                return True
            if kind == WORKLOAD:  # its name is made of the job's uid: the next look finds it
                return False
            self._refusals.set_taken(key_of(job), kind, name)
            return False

    async def _permitted(self, job: Manifest, what: str, call: Awaitable[object]) -> bool:
        """Awaits the call, and keeps the job's first refusal, or failure of the server. False: a first conflict, which stops
        nothing else."""
        try:
            await call
        except (Conflict, Refused, Retryable) as error:
            if self._refusals.reject(key_of(job), what, error):
                raise _Rejected from error
            return False
        return True


async def _run(batch: SlowStartBatch) -> bool:
    try:
        return await batch.run()
    except _Rejected:
        return False


class _Rejected(Exception):
    """The cluster refuses this child, or fails with it. The next pass decides about it."""


def _is_of(job: Manifest, action: Action) -> bool:
    """A write of the job's own status."""
    return isinstance(action, WriteStatus) and action.kind == job["kind"]


def _is_pod(action: Action) -> bool:
    return isinstance(action, Delete) and action.kind == "Pod"


def _is_budget(action: Action) -> bool:
    """Pods do not need it."""
    return isinstance(action, Create) and action.manifest["kind"] == "PodDisruptionBudget"
