"""Messages between the services of a job: JSON by msgspec over HTTP, under `/v1/`. One struct per body.

Every request carries `Authorization: Bearer <job token>` and, once a world exists, `X-Coxswain-Generation`. An older
generation is answered 409 (`Stale`), a wrong token 401; refusals are 422 with a `Fault` body.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.block import BlockEntry
from coxswain.boxes import Box
from coxswain.config import ModelConfig, TokenizerConfig
from coxswain.layout import Layout, Seat
from coxswain.live import Held, LiveSource
from coxswain.membership.values import Cursor, Sequence
from coxswain.plan.values import StageOperations, Task
from coxswain.planlog import LoaderShare
from coxswain.structs import prepare

TOKEN_HEADER = "Authorization"
GENERATION_HEADER = "X-Coxswain-Generation"

Role = Literal["coordinator", "loader", "trainer", "constructor"]


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal or failure: `reason` is stable CamelCase (conditions, events), `message` a text."""

    reason: str
    message: str
    retryable: bool = False
    object: str = ""


# --- joining the job ------------------------------------------------------------------------------------------------


class Register(msgspec.Struct, frozen=True):
    """POST /v1/register by an agent, loader or constructor.

    Repeated after reconnects; idempotent by `instance`.
    """

    role: Role
    name: str  # `loader-0`, `trainer-2`; a constructor carries its trainer's name
    pod: str
    instance: str  # random per process start: another one means that the process before is gone
    host: str  # where others reach it
    port: int  # Flight port of a loader; 0 for other members
    devices: int = 0  # an agent's
    generation: int = 0  # an agent's: the world in which its workers run; 0: there is none
    last_error: str = msgspec.field(name="trouble", default="")  # a loader's, of its store
    node: str = ""  # an agent's; empty: not known
    config: str = ""  # name of the ConfigMap that it has read; empty: it does not know
    held: tuple[Held, ...] | UnsetType = UNSET  # an agent's: what its workers hold that have left their world
    left: int | UnsetType = UNSET  # an agent's: the world that some of its workers have left, or ended in
    broken: str | UnsetType = UNSET  # why a worker has left that world unasked


class Registered(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to Register."""

    generation: int  # current, 0 = none yet
    lost: int = 0  # an agent's workers leave the world of this generation; then it registers again with what they hold
    stacks: bool = False  # that world hung: running workers write their stacks to their logs first


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to reports of a world's members: what has arrived and what is durable.

    `coxswain_link.outbox` acts on it.
    """

    coordinator: str  # another one has not what was sent before
    saved: int  # steps below are in a checkpoint
    heartbeat_seconds: float = 0.0  # from a message to a heartbeat; 0: as the sender likes, which is a second
    end: int | None = None  # work ends before this step, as far as it is decided; None: no end is known


class Heartbeat(msgspec.Struct, frozen=True):
    """POST /v1/beats by workers and constructors that have nothing else to say: a sign of life."""

    generation: int
    rank: int = -1  # a worker's
    progress: int = 0  # of a worker's start: grows while it loads its state


class World(msgspec.Struct, frozen=True):
    """GET /v1/world?after=G&wait=SECONDS: the first world newer than G, by long poll (204 when the wait ends first).

    With `instance`, the wait ends at once for a service that has to register (again).
    """

    generation: int
    first_step: int
    layout: Layout
    seats: tuple[Seat, ...]  # layout.ranks()
    trainers: tuple[str, ...]  # name per trainer index
    loaders: tuple[LoaderShare, ...]
    checkpoint: str = ""  # manifest key, relative to the checkpoint uri; empty: initialise from the seed
    vocabulary: int = 0  # rows of the embedding: the tokenizer's size rounded up to 64, or the model's own
    ids: int = 0  # the tokenizer's size; 0: sent by an earlier release
    stacks: bool = False  # nothing reads it: `Registered.stacks` comes before workers leave the world that hung
    live: LiveSource | UnsetType = UNSET  # where the state comes from, if not from `checkpoint`
    nodes: tuple[str, ...] | UnsetType = UNSET  # node per trainer index; empty names are not known


class Finished(msgspec.Struct, frozen=True):
    """GET /v1/world answers 410 with this once the job has ended: services exit with `exit_code`."""

    exit_code: int
    reason: str
    message: str


class Rendezvous(msgspec.Struct, frozen=True):
    """POST by rank 0, GET /v1/rendezvous?generation=G&wait=S by the others: the store's address."""

    generation: int
    host: str
    port: int


class LoaderAddress(msgspec.Struct, frozen=True):
    name: str
    host: str
    port: int
    instance: str


class LoaderAddresses(msgspec.Struct, frozen=True):
    """GET /v1/loaders: current addresses; a constructor asks again when a loader does not answer."""

    loaders: tuple[LoaderAddress, ...]


class WorkerExit(msgspec.Struct, frozen=True):
    """POST /v1/exits by an agent: a worker of generation `generation` ended."""

    generation: int
    trainer: str
    device: int
    rank: int
    exit_code: int  # negative: killed by that signal
    fault: Fault | None = None  # what the worker said last


# --- the block index ------------------------------------------------------------------------------------------------


class Shares(msgspec.Struct, frozen=True):
    """GET /v1/shares?loader=NAME&wait=S: what this loader owns (204 until every loader has registered)."""

    shares: tuple[LoaderShare, ...]


class Indexed(msgspec.Struct, frozen=True):
    """POST /v1/indexed: this share of a source is indexed, or cannot be (`fault`).

    A large share comes as several messages: each has the blocks of one `part` of `parts`.
    """

    share: LoaderShare
    blocks: tuple[BlockEntry, ...]
    tokenizer: str = ""  # hash of the tokenizer
    vocabulary: int = 0  # its size, EOS included
    fault: Fault | None = None
    part: int = 0
    parts: int = 1


class SourceBlocks(msgspec.Struct, frozen=True):
    """GET /v1/blocks?source=NAME&wait=S[&from=N][&known=FINGERPRINT]: blocks of a source in index order, from the N-th on.

    A sample's index counts through them. `total`: how many the source has; the rest is asked for
    with the next N. None of them where the asker knows the source's `fingerprint`.
    """

    source: str
    blocks: tuple[BlockEntry, ...]
    total: int = 0
    fingerprint: str = ""  # of all its blocks; empty: sent by an earlier release


BLOCKS_IN_MESSAGE = 50_000
"""Blocks that one message carries at most: some 15 MB."""


# --- steps ----------------------------------------------------------------------------------------------------------


class Evaluation(msgspec.Struct, frozen=True):
    """Held-out sequences that the world evaluates after a step's update, forward only; or a member's part of it.

    Their places and tasks are numbered behind those of the step. Parts are cut as those of `StepPlan`.
    """

    sequences: tuple[Sequence, ...]
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]
    labels: int  # valid tokens of all sequences
    first: int  # place of the first sequence: the number of those that the step trains on
    places: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Of the sequences that are here."""
        return sum(s.tokens for s in self.sequences)

    def sequence(self, place: int) -> Sequence:
        """As `StepPlan.sequence`."""
        return self.sequences[bisect_left(self.places, place) if self.places else place - self.first]


class StepPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Membership and placement of one step, or a member's part of it: all that constructors and workers need.

    A rank's part has the tasks of its replica, the operations of its stage and no sequences. A
    trainer's part has the tasks and sequences of its replicas, and of each task only their slices.
    """

    generation: int
    step: int
    sequences: tuple[Sequence, ...]
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]
    labels: int  # valid tokens of the whole step
    digest: str  # of the four fields above and the evaluation in the whole plan: workers compare it
    makespan_seconds: float
    makespan_over_bound: float
    # Of each of `sequences` in the membership, ascending; empty: they are all of it, or none.
    places: tuple[int, ...] = ()
    evaluation: Evaluation | None = None  # None: no evaluation follows the step
    waves: int = 1  # of the whole plan: every rank passes a barrier between two, also without a task in them
    balance: str = ""  # the planner that placed the step; empty: sent by an earlier release
    speeds: tuple[float, ...] = ()  # of replicas, that the whole plan was made with; empty: all are 1, or it is a part

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """Those of the step, then those of its evaluation."""
        return (*self.tasks, *self.evaluation.tasks) if self.evaluation else self.tasks

    def trains(self, place: int) -> bool:
        """Whether the sequence at this place is the step's; else it is held out."""
        return self.evaluation is None or place < self.evaluation.first

    def sequence(self, place: int) -> Sequence:
        """The sequence at this place, of the step or of its evaluation. Only of a whole plan or a trainer's part."""
        if self.evaluation is not None and not self.trains(place):
            return self.evaluation.sequence(place)
        return self.sequences[bisect_left(self.places, place) if self.places else place]


class StepPlans(msgspec.Struct, frozen=True):
    """GET /v1/plans?from=K&wait=S&rank=R (or &trainer=NAME), ahead of time: parts of committed plans from step K on, at most 8.

    With neither a rank nor a trainer, whole plans: for tools.
    """

    plans: tuple[StepPlan, ...]


End = Literal["", "Completed", "Suspended", "Moved"]
"""How work in a world ends; empty: it does not. After `Moved` its workers wait for the next world."""


class StepDirective(msgspec.Struct, frozen=True):
    """GET /v1/steps?step=K&wait=S&rank=R (workers, when they begin step K): what to do at the boundary before step K, and the
    rank's part of its plan.

    The same for every rank but for `plan`: `checkpoint`: save the state as of now under step K; `end`: then leave; else run
    `plan`. With neither an end nor a plan: this coordinator has not caught up with a world that ran without one; work goes on
    as without it.
    """

    step: int
    checkpoint: bool
    end: End
    plan: StepPlan | None
    probe: bool | UnsetType = (
        UNSET  # True: this rank runs the short probe before the step, and reports it with the step
    )


class DeliveredDigests(msgspec.Struct, frozen=True):
    """POST /v1/served by a constructor: digests of the sequences whose first token it delivered."""

    generation: int
    step: int
    digests: tuple[tuple[int, str], ...]  # (position in the membership, hex SHA-256 of the whole sequence's token ids)


class TaskTiming(msgspec.Struct, frozen=True, array_like=True):
    """One measured operation: seconds since the worker began the step."""

    task: int
    kind: Literal["F", "B"]
    start: float
    stop: float
    waited: float = 0.0  # within it, for other ranks, or spent on gradients that leave beside it


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Sums over all ranks, known to each of them from its vote on a step: one report with them stands in for lost ranks."""

    loss_sum: float
    delivered: int  # the whole delivered digest


class StepReport(msgspec.Struct, frozen=True):
    """POST /v1/reports by each worker after the step's update."""

    generation: int
    step: int
    rank: int
    loss_sum: float | None  # this rank's tokens; JSON has no NaN or infinity: they arrive as None
    delivered: int  # this rank's part of the delivered digest, unsigned 64 bits
    gradient_norm: float | None
    learning_rate: float
    seconds: float  # whole step
    compute_seconds: float
    data_wait_seconds: float
    reduce_seconds: float
    timings: tuple[TaskTiming, ...] = ()
    ended: float = 0.0  # unix time on this rank's clock
    evaluation_loss_sum: float | None = None  # of this rank's held-out tokens; None: no evaluation, or not finite
    evaluation_seconds: float = 0.0  # not part of `seconds`
    probe_seconds: float | UnsetType = UNSET  # of the short probe, where the directive has asked for it
    totals: Totals | UnsetType = UNSET


# --- checkpoints ----------------------------------------------------------------------------------------------------


class ShardContents(msgspec.Struct, frozen=True):
    """A shard's sidecar: its boxes and kinds, compressed by zstd."""

    boxes: tuple[Box, ...]
    kinds: tuple[str, ...]


class Hull(msgspec.Struct, frozen=True, array_like=True):
    """A box around all boxes that a shard has of like tensors of the layers from `first` to `last`."""

    tensors: str  # their name, with * for the layer's number
    first: int  # 0 in names without a number
    last: int
    start: tuple[int, ...]
    stop: tuple[int, ...]


class Listing(msgspec.Struct, frozen=True):
    """Where a shard's boxes and kinds are, if not in the manifest, and what they lie in."""

    key: str  # shards/<sha256>.boxes.json.zst
    bytes: int
    hulls: tuple[Hull, ...]


class Shard(msgspec.Struct, frozen=True):
    """A content-named safetensors object: tensor `i` is `boxes[i]` of kind `kinds[i]`.

    Kinds are parameter, exp_avg and exp_avg_sq. With a listing, boxes and kinds are empty here.
    """

    key: str  # shards/<sha256>.safetensors
    bytes: int
    boxes: tuple[Box, ...]
    kinds: tuple[str, ...]
    listing: Listing | UnsetType = UNSET

    @property
    def objects(self) -> dict[str, int]:
        """Bytes by key of all that belongs to it."""
        return {self.key: self.bytes} | ({self.listing.key: self.listing.bytes} if self.listing else {})


class ShardsSaved(msgspec.Struct, frozen=True):
    """POST /v1/saved by a worker: its part of checkpoint `step` is in the store."""

    generation: int
    step: int
    rank: int
    ranks: int  # of the world; nothing reads it: the world's own number counts, and earlier releases send it
    shards: tuple[Shard, ...]
    seconds: float
    end: End = ""  # of the directive that requested it: a later coordinator needs it


class CheckpointManifest(msgspec.Struct, frozen=True):
    """A checkpoint, created by the coordinator once all ranks have saved.

    Only a checkpoint advances what counts as consumed.
    """

    version: int
    job: str
    step: int  # steps done; the next one to run
    attempt_generation: int
    cursor: Cursor
    stream_digest: str
    tokens: int
    model_hash: str
    stream_hash: str
    index_hash: str
    vocabulary: int
    shards: tuple[Shard, ...]
    time: float
    model: ModelConfig | None = None  # None: written by an earlier release
    longest: int = 0  # the job's maxSequenceTokens
    tokenizer: TokenizerConfig | None = None  # of the job's sources; None: written by an earlier release


# --- the operator and people ----------------------------------------------------------------------------------------


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

    def revision(self) -> str:
        """Changes with what needs an action at once, not with counters that grow while the job runs."""
        last = self.events[-1].sequence if self.events else -1
        fault = self.fault.reason if self.fault else ""
        return f"{self.phase}/{self.generation}/{last}/{len(self.sources)}/{fault}/{self.reason}"


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
