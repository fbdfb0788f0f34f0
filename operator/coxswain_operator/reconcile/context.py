"""What was observed, parsed: spec and status, the resolved job, each member with its current pod."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from coxswain.config import JobConfig
from coxswain.structs import UNDECODABLE
from coxswain.wire import Fault, JobReport
from coxswain_operator.children.job_token import mount_hint
from coxswain_operator.reconcile import incarnations, pending
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.pending_edits import pending_edits
from coxswain_operator.reconcile.pinned import Start, has_pods, start_of
from coxswain_operator.reconcile.ranges import decode
from coxswain_operator.reconcile.spec import JobSpec, read_spec
from coxswain_operator.reconcile.status import JobStatus, read_status
from coxswain_operator.reconcile.template_faults import template_faults
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.reconcile.validate import resolve_config
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest, PodView, member_name

COORDINATOR = "coordinator"
UNSCHEDULABLE = "Unschedulable"  # the state of a job that waits for a pod that no node takes
QUEUED = "Queued"  # the state of a job that a queue holds back, or that is not valid


@dataclass(frozen=True)
class Context:
    """What every policy gets."""

    observed: Observed
    settings: Settings
    now: float
    spec: JobSpec
    status: JobStatus
    start: Start | None  # None: `faults` say why
    faults: tuple[Fault, ...]  # of the specs as they are now
    edits: str  # that wait for the next attempt
    wanted_steps: int  # at which the job stops by its spec as it is now; 0: the spec is not valid

    @property
    def config(self) -> JobConfig | None:
        """What the pods of this start read."""
        return self.start.config if self.start else None

    @property
    def name(self) -> str:
        return str(self.observed.job["metadata"]["name"])

    @property
    def is_deleting(self) -> bool:
        """The job is being deleted, and a finalizer of others keeps it."""
        return "deletionTimestamp" in self.observed.job["metadata"]

    @property
    def annotations(self) -> dict[str, str]:
        return self.observed.job["metadata"].get("annotations") or {}

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Names of all that belong to the gang now, the coordinator first; of all that are known while the job is not valid."""
        return self.members_of(self.status)

    def members_of(self, status: JobStatus) -> tuple[str, ...]:
        """Those that this status gives the gang."""
        if self.config is None:
            return tuple({**self.pods, **dict.fromkeys(sorted(self.seen))})
        loaders = (member_name("loader", i) for i in range(self.config.loaders))
        trainers = (member_name("trainer", i) for i in range(self._size_of(status)))
        return (COORDINATOR, *loaders, *trainers)

    @property
    def size(self) -> int:
        """Trainers that the gang has now: those of the configuration, unless that has changed since the start."""
        return self._size_of(self.status)

    def _size_of(self, status: JobStatus) -> int:
        return status.trainers.desired or (self.config.trainers if self.config else 0)

    @cached_property
    def pods(self) -> dict[str, PodView]:
        """The pod of each member's current incarnation, where there is one."""
        named = ((p.member, p) for p in self.observed.pods)
        current = ((member, p) for member, p in named if self.numbers.of(member).number == p.incarnation)
        token = mount_hint(self.observed.job, self.observed.tokens)
        return {member: pending.with_mount_hint(self._dated(p), self.config, token, self.now) for member, p in current}

    def _dated(self, pod: PodView) -> PodView:
        """Found its node by our clock. The API server's is behind by what the pod seems to be older than its number."""
        if pod.phase != "Pending" or not (pod.scheduled and pod.created):
            return pod
        behind = max(seconds(self.status.start_time), seconds(self.numbers.of(pod.member).since)) - pod.created
        return replace(pod, scheduled=pod.scheduled + behind) if behind > 0 else pod

    @property
    def kept_pods(self) -> tuple[PodView, ...]:
        """Those that a queue may keep: the job's, and those of earlier jobs of its name."""
        return (*self.observed.pods, *self.observed.leftovers)

    @cached_property
    def not_serving(self) -> tuple[str, ...]:
        """Members whose current pod does not work yet, or no more."""
        return tuple(m for m in self.members if m not in self.pods or not self.pods[m].is_serving)

    @property
    def all_serving(self) -> bool:
        """Every member works."""
        return bool(self.members) and not self.not_serving

    @cached_property
    def numbers(self) -> incarnations.Numbers:
        return incarnations.numbers(self.status)

    @property
    def seen(self) -> frozenset[str]:
        """Members whose current pod has been there."""
        return decode(self.status.seen)

    @property
    def scaled(self) -> bool:
        """Another number of trainers is asked for than when the gang started, and than it has."""
        size = self.status.trainers
        return self.spec.trainers.count not in (size.asked, size.desired) and size.asked != 0

    @property
    def coordinator(self) -> PodView | None:
        return self.pods.get(COORDINATOR)

    @property
    def state_of_gang(self) -> str:
        """What people see of a job that is neither over nor suspended."""
        pod = self.coordinator
        if pod is not None and self.report is not None and self.report.phase in ("Indexing", "Running"):
            return self.report.phase
        known = self.status.state not in ("", QUEUED)
        if pod is not None and pod.is_active and known and (self.leaving or self._silent(pod)):
            return self.status.state  # its end is judged once it has left; a single missed answer changes nothing
        if self._queued:
            return QUEUED
        if any(map(pending.is_unschedulable, self.pods.values())):
            return UNSCHEDULABLE
        return "Restarting" if self.status.progress is not None else "Starting"

    @property
    def _queued(self) -> bool:
        """A queue holds pods back, or a scheduler of whole gangs has not placed this one."""
        pods = self.pods.values()
        settings = self.start.settings_of_pods(self.settings) if self.start else self.settings
        unplaced = any(map(pending.is_unschedulable, pods)) and not any(p.node for p in pods)
        return any(p.unscheduled_reason == pending.GATED for p in pods) or (unplaced and bool(settings.gang_backend))

    def _silent(self, coordinator: PodView) -> bool:
        """Does not answer this once."""
        return self.report is None and coordinator.ready

    @property
    def leaving(self) -> bool:
        """The coordinator has announced the end and is about to go."""
        return self.report is not None and self.report.phase in ("Completed", "Suspended", "Failed")

    @cached_property
    def report(self) -> JobReport | None:
        """The coordinator's latest report; after its exit, the one in its termination message.

        None without its current pod: one that is replaced and still answers reports what is over, and numbers other events.
        """
        pod = self.coordinator
        if pod is None:
            return None
        last = None if pod.is_active else parse_report(pod.message)
        return last or self.observed.report


def build_context(observed: Observed, now: float, settings: Settings) -> Context:
    status, spec = read_status(observed.job), read_spec(observed.job)
    wanted, faults = resolve_config(observed)
    if wanted is not None and status.trainers.desired:
        # What pods read is settled when they start; another count is for the coordinator, or restarts them (see resize).
        named = has_pods(observed, status) and status.trainers.configured
        wanted = msgspec.structs.replace(wanted, trainers=named or status.trainers.desired)
    start, faults = start_of(observed, status, settings, wanted, faults)
    if start is not None and (refused := template_faults(observed, start, settings)):
        start, faults = None, (*refused, *faults)
    edits = pending_edits(observed, start, settings) if start else ""
    return Context(observed, settings, now, spec, status, start, faults, edits, wanted.total_steps if wanted else 0)


def generation(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("generation", 1))


def parse_report(message: str) -> JobReport | None:
    """The JobReport in a termination message, if it is one."""
    try:
        return msgspec.json.decode(message.encode(), type=JobReport)
    except (*UNDECODABLE, UnicodeEncodeError):
        return None


def parse_fault(message: str) -> Fault | None:
    """The Fault in a termination message: alone, or inside the coordinator's last report."""
    report = parse_report(message)
    if report is not None:
        return report.fault
    try:
        return msgspec.json.decode(message.encode(), type=Fault)
    except (*UNDECODABLE, UnicodeEncodeError):
        return None
