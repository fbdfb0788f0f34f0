"""The values of placement. Planners make them, the validator checks them, workers run them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.structs import prepare


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens [start, stop) of sequence number `sequence` of the membership, computed by `replica`."""

    replica: int
    sequence: int
    start: int
    stop: int


class Task(msgspec.Struct, frozen=True, gc=False):
    """The unit of execution.

    A *pack* has one replica and whole short sequences. A *ring* has D >= 2 replicas in ring order
    and one or more sequences, each in 2D chunks: the i-th replica holds chunks i and 2D-1-i (head and
    tail), so that causal work is even. Chunks may be uneven by one token, and empty for very short
    sequences; an empty one has no slice. Slices are listed by sequence, then by replica in ring order.
    """

    index: int  # place in the step's one global order
    kind: Literal["pack", "ring"]
    replicas: tuple[int, ...]
    slices: tuple[Slice, ...]
    seconds: float = 0.0  # planned duration on the cost model, slowest member's speed included
    wave: int | UnsetType = UNSET
    """A task of a later wave starts on no replica before every task of the waves before has ended on all. Unset: 0.
    Waves rise along the global order."""
    ulysses: int | UnsetType = UNSET
    """How many neighbouring members of a ring exchange heads for tokens; it divides the ring's degree and the key heads of
    every device. Keys go round among what remains. Unset: none do, keys go round among all members."""


class Operation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a stage's operation list: run forward ("F") or backward ("B") of a task."""

    kind: Literal["F", "B"]
    task: int


class StageOperations(msgspec.Struct, frozen=True, gc=False):
    """The operations of one stage of one replica in a step, in order."""

    replica: int
    stage: int
    operations: tuple[Operation, ...]


class Placement(msgspec.Struct, frozen=True):
    """Where and in which order one step's sequences are computed, and how long that takes."""

    balance: str
    replicas: int
    capacity: int
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]
    makespan_seconds: float
    lower_bound_seconds: float
    work_seconds: float  # sum over tasks and members of busy time at speed 1
    idle_fraction: float  # 1 - busy / (replicas x makespan)

    @property
    def makespan_over_bound(self) -> float:
        return self.makespan_seconds / self.lower_bound_seconds if self.lower_bound_seconds else 1.0


prepare(__name__)
