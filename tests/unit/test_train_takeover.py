"""A change of layout on one rank: what it offers of what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
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
from coxswain_train.live.claims import Content
from coxswain_train.live.copies import Copies
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.live.takeover import TakeOver, Target, Update
from coxswain_train.parallel.state import State
from tests.unit.living_samples import pending

ME, WARDS = 1, (1, 2, 0)  # rank 1 keeps the copy of rank 2's shard
OLD, NEW = (0, 2, 4, 6), (0, 1, 3, 6)


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
    """An aborted one: receives say that they are done, and nothing that was sent has arrived."""

    def start(self, sends: Any, receives: Sequence[tuple[int, Tensor]]) -> Any:
        for _, tensor in receives:
            tensor.view(torch.uint8).fill_(0xA5)
        return SimpleNamespace(wait=lambda: None)


class World:
    """Three ranks: all claim what this one does, all list what it lists; the vote is `votes`, or is cut short."""

    ranks = 3

    def __init__(self, votes: list[list[float]] | None = None) -> None:
        self.asked, self.votes = 0, votes

    def scalars(self, mine: list[float]) -> list[list[float]]:
        self.asked += 1
        if self.asked == 1:
            return [[mine[0], float(rank), mine[2], float(WARDS[rank]), *mine[4:]] for rank in range(3)]
        if self.asked == 2:
            return [[*mine[:2], *[0.0] * (len(mine) - 2)]] * 3
        if self.votes is None:
            raise RuntimeError("the world was aborted")
        return self.votes


def refused(world: World, error: type[Exception], says: str) -> None:
    """A change of layout that fails in its vote: only the old state is offered after it, as before a step that is dropped."""
    old, new = cut_at(OLD), cut_at(NEW)
    live = LiveState()
    live.begin(Cut(5, ME, 8, state_of(old, ME), WARDS[ME], state_of(old, WARDS[ME])))
    source: Any = LiveSource(5, SimpleNamespace(ranks=lambda: range(3)), 8, tuple(Holder(r, r) for r in range(3)))  # type: ignore[arg-type]
    copies: Any = Copies(Wire(), ME, WARDS, new.sizes())  # type: ignore[arg-type]
    target = Target(6, ME, new, copies, [0, 0, 0], {"w": (6,)}, torch.float32, torch.device("cpu"))
    before = live.all_held(0)
    live.reduced(pending(8))  # the source goes on before this step
    with pytest.raises(error, match=says):
        TakeOver(live, world, target, source).run(old, Update(OptimizerConfig(learning_rate=0.1), 0.1, ()))
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
