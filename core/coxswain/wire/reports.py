"""What the operator and people read and ask for."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.structs import prepare
from coxswain.wire.joining import Fault


class SourceReport(msgspec.Struct, frozen=True):
    name: str
    source: str
    documents: int
    tokens: int
    p50: int
    p90: int
    p99: int
    max: int
    rejected: int
    fingerprint: str
    drawn_tokens: int = 0
    weight: int = 0


class TrainerReport(msgspec.Struct, frozen=True):
    """A trainer's slowest rank over the latest steps, as `coxswain.trainer_figures` computes it. Means of a step in seconds."""

    name: str
    pod: str
    node: str
    rank: int
    compute_seconds: float
    data_wait_seconds: float
    wait_seconds: float  # neither compute nor data: other ranks, reduction and update
    slowdown: float  # compute over planned compute, as a multiple of the median rank's; 0: unknown


class PredictedLayout(msgspec.Struct, frozen=True):
    """A layout that mode Auto has weighed."""

    summary: str
    seconds: float  # of a mean step, predicted
    memory_bytes: int = 0  # of the fullest device, predicted


class StrategyReport(msgspec.Struct, frozen=True):
    """What mode Auto has chosen, and the next best, at most 8."""

    chosen: PredictedLayout
    alternatives: tuple[PredictedLayout, ...] = ()


class StragglerReport(msgspec.Struct, frozen=True):
    """A device that is confirmed to compute slower than planned, and what was done about it."""

    trainer: str  # its name
    device: int  # of the trainer
    node: str  # empty: not known
    slowdown: float  # seconds of compute over those at speed 1: 2.0 takes twice as long
    since_step: int  # the first slow one
    since: float  # unix time when that step was closed
    cause: str  # Device or Node
    action: str = ""  # what was done, in words; empty: nothing


class NodeRequest(msgspec.Struct, frozen=True):
    """A node that a job under stragglers.action ReplaceNode wants to leave: nothing else makes up for it."""

    node: str
    trainer: str  # on it, by name
    evidence: str  # what was measured, for people


class JobReport(msgspec.Struct, frozen=True):
    """GET /v1/report for the operator; without sources also the coordinator's termination message."""

    phase: Literal["Waiting", "Indexing", "Starting", "Running", "Completed", "Suspended", "Failed"]
    generation: int
    step: int
    steps: int
    tokens: int
    loss: float | None
    tokens_per_second: float
    idle_fraction: float
    eta_seconds: int
    layout_hash: str
    layout_summary: str
    checkpoint_step: int  # -1: none yet
    checkpoint_uri: str
    checkpoint_time: float
    waiting_for: str  # for people: what the job waits for
    sources: tuple[SourceReport, ...] = ()
    events: tuple[JobEvent, ...] = ()  # since the job began, newest last, at most 64
    fault: Fault | None = None
    reason: str = ""  # of the end: Completed's reason (StopReached, DataExhausted)
    trainers: tuple[TrainerReport, ...] = ()  # of the current world, the slowest first, at most 64
    slow: str = ""  # names slow trainers; empty: none is slow
    gradient_norm: float | None = None  # of the last step, before clipping
    learning_rate: float | None = None
    mfu: float | None = None
    evaluation_loss: float | None = None  # the latest
    evaluation_step: int = -1  # the step behind which it was evaluated; -1: none yet
    step_seconds: float = 0.0  # of the latest steps, measured; 0: none yet
    strategy: StrategyReport | None = None  # of mode Auto
    stragglers: tuple[StragglerReport, ...] = ()  # confirmed ones, the slowest first, at most five
    replace_node: NodeRequest | None = None  # what is wanted of the operator now
    size: int = 0  # trainers that the job has, or shall have by the last question about it; 0: an earlier release

    def revision(self) -> str:
        """Changes with what needs an action at once, not with counters that grow while the job runs."""
        last = self.events[-1].sequence if self.events else -1
        fault = self.fault.reason if self.fault else ""
        return f"{self.phase}/{self.generation}/{last}/{len(self.sources)}/{fault}/{self.reason}/{self.size}"


class JobEvent(msgspec.Struct, frozen=True):
    """A candidate for an Event. `sequence` grows by one: the operator publishes each once."""

    sequence: int
    time: float
    reason: str
    message: str
    warning: bool = False


class StopRequest(msgspec.Struct, frozen=True):
    """POST /v1/stop: checkpoint at the next boundary that all workers can reach; exit with code 3."""

    reason: str
    at_step: int = -1  # not before this step


class Size(msgspec.Struct, frozen=True):
    """POST /v1/size: how many trainers the job shall have, without a new attempt. Repeated until the reply is final."""

    trainers: int


class SizeReply(msgspec.Struct, frozen=True):
    """Reply to Size. After `Refused` the job goes on as it is."""

    state: Literal["Done", "UnderWay", "Refused"]
    trainers: int  # of the current world
    message: str = ""  # what is awaited, or why it is refused


class StepLine(msgspec.Struct, frozen=True):
    """One line of `steps.jsonl`."""

    step: int
    worldGeneration: int
    tokens: int
    sequences: int
    loss: float
    stream_digest: str
    delivered_digest: str
    seconds: float
    idle_fraction: float
    makespan_over_bound: float
    gradient_norm: float
    learning_rate: float
    tokens_by_source: dict[str, int]
    data_wait_seconds: float
    time: float  # when the first rank ended the step, by its clock
    mfu: float | None = None  # model FLOPs over the devices' peak; None: the peak is unknown
    evaluation_loss: float | None = None  # of held-out tokens with the step's new weights; None: not evaluated then
    evaluation_tokens: int = 0
    evaluation_seconds: float = 0.0  # of the slowest rank; not part of `seconds`
    planned_seconds: float = 0.0  # of the step by the cost model: makespan, reduction and update; 0: not recorded
    balance: str | UnsetType = UNSET  # the planner that placed the step: the fall-back where the job's was late


prepare(__name__)
