"""The change from what ranks hold of an earlier layout to the shards of a new one, in a world of running workers.

Claims, the pending step finished or dropped, digests, rounds of messages, the vote, the swap. Until the vote the old state
stays whole; from the vote on until its result is known both are.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.ma  # np.unique imports it at its first call: not in a change, which training waits for
import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import OptimizerConfig
from coxswain.errors import Retryable
from coxswain.holdings import Holding
from coxswain.live import LiveSource
from coxswain.shards import Shards
from coxswain.transfers import Boxes, Links, Transfers, held_boxes, transfers
from coxswain_train.live.claims import Claim, Content, check_claims, check_contents, check_moved
from coxswain_train.live.copies import Copies
from coxswain_train.live.digests import Known, content_of
from coxswain_train.live.moves import Move, Mover, bytes_of, moves_of, rounds
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.parallel.state import KINDS, Rooms, State

log = logging.getLogger(__name__)
Holdings = tuple[Holding, ...]  # of one rank
_NEAR, _FAR = 4.0, 1.0  # bytes a unit of time inside a node and between nodes: only their proportion counts


class Ranks(Protocol):
    """All ranks of the world."""

    @property
    def ranks(self) -> int: ...

    def scalars(self, mine: list[float]) -> list[list[float]]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One rank's place in the new world: its shard and its ward's, of `dtype` on `device`. `nodes`: a number for each rank."""

    generation: int
    rank: int
    shards: Shards
    copies: Copies
    nodes: Sequence[int]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device

    @property
    def links(self) -> Links:
        between = np.full(len(self.nodes), _FAR)
        return Links(np.asarray(self.nodes, dtype=np.int64), _NEAR, between)

    def cut(self, step: int, held: Rooms) -> Cut:
        """The new shard and the copy: the tensors of boxes that are held, and fresh room for the others."""
        ward = self.copies.ward
        copy = None if ward is None else self._room(ward, held)
        return Cut(self.generation, self.rank, step, self._room(self.rank, held), ward, copy)

    def _room(self, rank: int, held: Rooms) -> State:
        room = State()
        room.hold(self.shards.boxes(rank), self.dtype, self.device, make=torch.empty, there=held)
        return room


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of the pending step needs."""

    config: OptimizerConfig
    rate: float
    matrices: Collection[str]


@dataclass(slots=True)
class Moved:
    """How a change went. Bytes are those of all ranks together, of state without weights; seconds this rank's, by phase."""

    state_bytes: int = 0
    weight_bytes: int = 0
    received: int = 0  # by this rank
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def ended(self, phase: str) -> None:
        """A phase, which began when the one before it ended."""
        since, self._since = self._since, time.perf_counter()
        self.seconds[phase] = self._since - since


class TakeOver:
    """One rank's part in the change."""

    def __init__(self, live: LiveState, world: Ranks, target: Target, source: LiveSource) -> None:
        self._live, self._world, self._target, self._source = live, world, target, source
        self.moved = Moved()
        self._known: Known = {}  # contents of what is held: a box that stays has the same memory, which nothing changes meanwhile

    def run(self, old: Shards, update: Update) -> None:
        """`old`: of the source's layout. Raises Retryable, or RuntimeError at an abort; the living state then stays as it is."""
        self._settle(update)
        self.moved.ended("claims")
        self._change(old)

    def _settle(self, update: Update) -> None:
        """Brings all holders to `source.step`."""
        source, live = self._source, self._live
        cut = live.choose(source.generation)
        whole = live.weights is not None and cut is not None and cut is live.current
        claims = [Claim(*row) for row in self._world.scalars(Claim.of(cut, whole).row())]
        stats = check_claims(source, claims)
        live.keep(cut)
        if cut is not None:
            if cut.step < source.step and stats is not None and cut.pending is not None:
                live.agreed(stats)
                live.update(update.config, update.rate, update.matrices)
            cut.pending = None
        now = (source.generation, source.step, 1.0)
        self._trained = {r: int(c.rank) for r, c in enumerate(claims) if (c.generation, c.step, c.weights) == now}
        self._weights = live.weights

    def _change(self, old: Shards) -> None:
        source, target, live = self._source, self._target, self._live
        found = self._list(old)
        self.moved.ended("list")
        held = live.current
        mine = {h.former: h.copy for h in source.holders if h.rank == target.rank}
        states = {} if held is None else {False: held.own, True: held.copy}
        have = {copy: state for copy in mine.values() if (state := states.get(copy)) is not None}
        total = check_contents(source, self._contents(_digest(found), have.get(False), have.get(True)))
        self.moved.ended("contents")
        held_rooms = rooms_of(have.values())
        fresh = target.cut(source.step, held_rooms)
        mover = Mover(target.copies.everyone, target.rank, target.generation, target.device)
        mover.run(self._rounds(found, self._element), held_rooms, rooms_of([fresh.own, fresh.copy]))
        self.moved.ended("moves")
        fresh.agreed = None if held is None else held.agreed  # a worker reports the step before by it
        if mover.faults:  # what has arrived is never offered, also where an abort ends the vote
            log.warning("%s", mover.faults[0])
        else:
            live.prepared = fresh  # before this rank's vote: others may swap as soon as they have it
        votes = self._contents(0, fresh.own, fresh.copy, fault=bool(mover.faults))
        try:
            check_moved(total, votes, bool(target.copies.wards))
        except Exception:
            live.prepared = None  # all ranks see the same votes
            raise
        live.keep(fresh)
        self.moved.ended("vote")
        self.moved.state_bytes, self.moved.received = int(found.elements.sum()) * self._element, mover.received

    @property
    def _element(self) -> int:
        """Bytes of all kinds."""
        return len(KINDS) * torch.empty(0, dtype=self._target.dtype).element_size()

    @property
    def weights(self) -> Mapping[Box, Tensor]:
        """What this rank's model held, where that is whole and of the source's step."""
        return self._weights if self._weights is not None and self._target.rank in self._trained else {}

    def spread(self, old: Sequence[Holdings], new: Sequence[Holdings], room: Mapping[Box, Tensor]) -> bool:
        """Gives every rank what its new model lacks of the weights that models still hold. False: some are nowhere whole.

        `old`, `new`: holdings by rank of both layouts. `room`: what this rank's model has no values of.
        """
        target, names = self._target, list(self._target.shapes)
        have = held_boxes(names, list(self._trained), [old[former] for former in self._trained.values()])
        need = held_boxes(names, range(len(new)), new)
        try:
            found = transfers(have, need, target.links, 1)
        except ValueError:
            return False
        mover = Mover(target.copies.everyone, target.rank, target.generation, target.device)
        held, rooms = ({b: [w] for b, w in weights.items()} for weights in (self.weights, room))
        ((some, *_), *_) = (held | rooms).values()
        element = some.element_size()
        mover.run(self._rounds(found, element), held, rooms)
        if mover.faults:
            raise Retryable(mover.faults[0])
        self.moved.ended("weights")
        self.moved.weight_bytes, self._weights = int(found.elements.sum()) * element, None
        return True

    def _list(self, old: Shards) -> Transfers:
        holders, target = self._source.holders, self._target
        names = list(target.shapes)
        have = old.table(names).on((h.rank, h.former) for h in holders)
        return transfers(have, self._need(names), target.links, 1)

    def _need(self, names: Sequence[str]) -> Boxes:
        shards, wards = self._target.shards, self._target.copies.wards
        return shards.table(names).on([*((rank, rank) for rank in range(shards.owners)), *enumerate(wards)])

    def _contents(self, moves: int, own: State | None, copy: State | None, fault: bool = False) -> list[Content]:
        digests = [0 if state is None else content_of(state.boxes(), self._known) for state in (own, copy)]
        return [
            Content.of(row) for row in self._world.scalars(Content(moves, digests[0], digests[1], int(fault)).row())
        ]

    def _rounds(self, found: Transfers, element: int) -> list[list[Move]]:
        names = self._target.shapes
        return rounds(moves_of(list(names), found), bytes_of(names, element))


def rooms_of(states: Iterable[State | None]) -> dict[Box, list[Tensor]]:
    """The tensors of each box, one a kind."""
    return {box: tensors for state in states if state is not None for box, tensors in state.rooms().items()}


def _digest(found: Transfers) -> int:
    columns = (found.name, found.first, found.last, found.left, found.right, found.sender, found.receiver)
    return zlib.crc32(b"".join(np.ascontiguousarray(column).tobytes() for column in columns))
