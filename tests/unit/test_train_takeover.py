"""A change of layout on one rank: what it offers of what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import OptimizerConfig
from coxswain.errors import Retryable
from coxswain.holdings import Holding
from coxswain.live import Held, Holder, LiveSource
from coxswain.shards import Cell, Shards
from coxswain_train.live.claims import Claim, Content, NotHeld
from coxswain_train.live.copies import Copies
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.live.takeover import TakeOver, Target, Update
from coxswain_train.parallel.state import State
from tests.unit.living_samples import pending

NAMES = [each.name for each in fields(Claim)]
ME, WARDS = 1, (1, 2, 0)  # rank 1 keeps the copy of rank 2's shard
OLD, NEW = (0, 2, 4, 6), (0, 1, 3, 6)
OWNERS = tuple(Holder(rank, rank) for rank in range(3))
COPIES = tuple(Holder(ward, rank, copy=True) for rank, ward in enumerate(WARDS))


def cut_at(bounds: Sequence[int]) -> Shards:
    """A vector of six elements, cut into a shard a rank."""
    box, ranks = Box("w", (0,), (6,)), len(bounds) - 1
    cell = Cell(box, 1, (0,), (0,), np.arange(ranks), np.array(bounds))
    return Shards((cell,), np.zeros(ranks, dtype=np.int64), ((Holding(box),),))


def state_of(shards: Shards, rank: int) -> State:
    state = State()
    state.hold(shards.boxes(rank), torch.float32, torch.device("cpu"))
    return state


class Wire:
    """An aborted one: receives say that they are done, and nothing that was sent has arrived. `senders`: of what was awaited."""

    def __init__(self) -> None:
        self.senders = list[int]()

    def start(self, sends: Any, receives: Sequence[tuple[int, Tensor]]) -> Any:
        for sender, tensor in receives:
            self.senders.append(sender)
            tensor.view(torch.uint8).fill_(0xA5)
        return SimpleNamespace(wait=lambda: None)


class World:
    """Three ranks: all list what this one does, the others claim step 8; the vote is `votes`, or is cut short."""

    ranks = 3

    def __init__(self, votes: list[list[float]] | None = None) -> None:
        self.asked, self.votes, self.claimed = 0, votes, list[float]()

    def scalars(self, mine: list[float]) -> list[list[float]]:
        self.asked += 1
        if self.asked == 1:
            self.claimed = mine
            others = ([mine[0], float(rank), 8.0, float(WARDS[rank]), *mine[4:]] for rank in range(3))
            return [mine if rank == ME else other for rank, other in enumerate(others)]
        if self.asked == 2:
            return [[*mine[:2], *[0.0] * (len(mine) - 2)]] * 3
        if self.votes is None:
            raise RuntimeError("the world was aborted")
        return self.votes


def cut_of(generation: int, step: int = 8) -> Cut:
    old = cut_at(OLD)
    return Cut(generation, ME, step, state_of(old, ME), WARDS[ME], state_of(old, WARDS[ME]))


def change(
    live: LiveState, world: World, new: Shards, holders: Sequence[Holder] = OWNERS, nodes: Sequence[int] = (0, 0, 0),
    wire: Wire | None = None,
) -> TakeOver:  # fmt: skip
    """From generation 5, before step 8."""
    source: Any = LiveSource(5, SimpleNamespace(ranks=lambda: range(3)), 8, tuple(holders))  # type: ignore[arg-type]
    copies: Any = Copies(wire or Wire(), ME, WARDS, new.sizes())  # type: ignore[arg-type]
    target = Target(6, ME, new, copies, nodes, {"w": (6,)}, torch.float32, torch.device("cpu"))
    return TakeOver(live, world, target, source)


def fails(found: TakeOver, error: type[Exception] = RuntimeError, says: str = "aborted") -> None:
    with pytest.raises(error, match=says):
        found.run(cut_at(OLD), Update(OptimizerConfig(learning_rate=0.1), 0.1, ()))


def refused(world: World, error: type[Exception], says: str, bounds: Sequence[int] = NEW) -> None:
    """A change of layout that fails in its vote: only the old state is offered after it, as before a step that is dropped."""
    live = LiveState()
    live.begin(cut_of(5))
    before = live.all_held(0)
    live.reduced(pending(8))  # the source goes on before this step
    fails(change(live, world, cut_at(bounds), (*OWNERS, *COPIES)), error, says)
    assert before == live.all_held(0) == (Held(0, 5, ME, 8, copies=(WARDS[ME],)),)


def test_what_arrived_wrong_is_not_offered_where_an_abort_ends_the_vote() -> None:
    refused(World(), RuntimeError, "aborted")


@pytest.mark.parametrize(
    ("vote", "says"),
    [
        (Content(0, 3, 0), "the new shards have content"),
        (Content(0, 0, 3), "the new copies have content"),
        (Content(0, 0, 0, 1), r"ranks \[0, 1, 2\] received messages that do not match"),
    ],
)
def test_a_change_fails_where_shards_copies_or_messages_are_not_what_they_were(vote: Content, says: str) -> None:
    """The old state has content 0."""
    refused(World([vote.row()] * 3), Retryable, says)


def test_what_arrived_right_is_not_offered_where_the_vote_fails_at_another_rank() -> None:
    """Nothing moves, so this rank has all."""
    refused(World([Content(0, 0, 0, 1).row()] * 3), Retryable, r"ranks \[0, 1, 2\] received", bounds=OLD)


@pytest.mark.parametrize(("prepared", "offers"), [(False, 1.0), (True, 0.0)])
def test_a_rank_offers_what_its_model_holds_only_with_the_layout_that_its_model_has(
    prepared: bool, offers: float
) -> None:
    """Where a vote was cut short, ranks may go on from the layout that was prepared: no model has its boxes yet."""
    live, world = LiveState(weights={}), World()
    live.current, live.prepared = (cut_of(4), cut_of(5)) if prepared else (cut_of(5), None)
    fails(change(live, world, cut_at(NEW)))
    assert dict(zip(NAMES, world.claimed, strict=True))["weights"] == offers


@pytest.mark.parametrize(("nodes", "sender"), [((0, 0, 1), 0), ((0, 1, 1), 2)])
def test_a_part_comes_from_a_rank_of_the_own_node_where_one_has_it(nodes: Sequence[int], sender: int) -> None:
    """Rank 0 has its shard, rank 2 the copy."""
    live, wire = LiveState(cut_of(5)), Wire()
    fails(change(live, World(), cut_at(NEW), (*OWNERS, *COPIES), nodes, wire))
    assert set(wire.senders) == {sender}


def test_a_rank_keeps_both_layouts_where_another_one_lacks_what_the_source_says_of_it() -> None:
    """The next source may be of the other layout."""
    live = LiveState(cut_of(4), cut_of(5))
    before = live.all_held(0)
    holders = (Holder(2, 0), Holder(1, 1), Holder(0, 2))
    fails(change(live, World(), cut_at(NEW), holders), NotHeld, "rank 0 is to hold the shard of rank 2")
    assert before == live.all_held(0) and len(before) == 2


@pytest.mark.parametrize("step", [7, 8])
def test_a_rank_uses_no_weights_of_another_step_than_the_source(step: int) -> None:
    """The source names it as no holder: rank 0 has the copy of its shard."""
    live = LiveState(cut_of(5, step), weights={Box("w", (0,), (6,)): torch.ones(6)})
    found = change(live, World(), cut_at(NEW), (OWNERS[0], OWNERS[2], Holder(ME, 0, copy=True)))
    fails(found)
    assert bool(found.weights) is (step == 8)
