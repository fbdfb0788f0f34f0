"""Joining a job: registrations, worlds, addresses, exits."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.layout import Layout, Seat
from coxswain.live import Held, LiveSource
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
    starting: bool | UnsetType = (
        UNSET  # an agent's, while its workers would wait for imports: no running world changes for it
    )
    fault: str | UnsetType = UNSET  # an error of a worker's own that has broken that world


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
    saving: int = 0  # once the ranks save for an end: grows while any of them writes its part


class Heartbeat(msgspec.Struct, frozen=True):
    """POST /v1/beats by workers and constructors that have nothing else to say: a sign of life."""

    generation: int
    rank: int = -1  # a worker's
    progress: int = 0  # of a worker: grows while it loads its state, and while it writes a checkpoint
    begun: int | UnsetType = UNSET  # by a worker: its last step; -1: none; UNSET: an earlier release


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


class StandbyProbes(msgspec.Struct, frozen=True):
    """POST /v1/probes by an agent, now and then: the short probes of devices of its trainer on standby; the first has none."""

    generation: int
    trainer: str
    seconds: tuple[tuple[int, float], ...] = ()  # by device of the trainer


class ProbesWanted(msgspec.Struct, frozen=True):
    """Reply to StandbyProbes: the devices of this trainer to probe next, those that were slow."""

    devices: tuple[int, ...]


prepare(__name__)
