"""A change of layout on one rank: what it offers of what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import OptimizerConfig
from coxswain.live import Holder, LiveSource
from coxswain_train.live.copies import Copies
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.live.takeover import TakeOver, Target, Update
from coxswain_train.parallel.state import State

ME, WARDS = 1, (1, 2, 0)  # rank 1 keeps the copy of rank 2's shard
OLD, NEW = ((0, 2), (2, 4), (4, 6)), ((0, 1), (1, 3), (3, 6))


class Cuts:
    """A vector of six elements, cut into a shard a rank."""

    def __init__(self, bounds: Sequence[tuple[int, int]]) -> None:
        self.bounds, self.owners = bounds, len(bounds)

    def boxes(self, rank: int) -> list[Box]:
        start, stop = self.bounds[rank]
        return [Box("w", (start,), (stop - start,))]

    def state(self, rank: int) -> State:
        state = State()
        state.hold(self.boxes(rank), torch.float32, torch.device("cpu"))
        return state


class Wire:
    """An aborted one: receives say that they are done, and nothing that was sent has arrived."""

    def start(self, sends: Any, receives: Sequence[tuple[int, Tensor]]) -> Any:
        for _, tensor in receives:
            tensor.view(torch.uint8).fill_(0xA5)
        return SimpleNamespace(wait=lambda: None)


class World:
    """Three ranks: all claim what this one does, all list what it lists, and the vote is cut short."""

    ranks = 3

    def __init__(self) -> None:
        self.asked = 0

    def scalars(self, mine: list[float]) -> list[list[float]]:
        self.asked += 1
        if self.asked == 1:
            return [[mine[0], float(rank), mine[2], float(WARDS[rank]), *mine[4:]] for rank in range(3)]
        if self.asked == 2:
            return [[*mine[:2], *[0.0] * (len(mine) - 2)]] * 3
        raise RuntimeError("the world was aborted")


def test_what_arrived_wrong_is_not_offered_where_an_abort_ends_the_vote() -> None:
    old, new = Cuts(OLD), Cuts(NEW)
    live = LiveState()
    live.begin(Cut(5, ME, 8, old.state(ME), WARDS[ME], old.state(WARDS[ME])))
    source: Any = LiveSource(5, SimpleNamespace(ranks=lambda: range(3)), 8, tuple(Holder(r, r) for r in range(3)))  # type: ignore[arg-type]
    copies: Any = Copies(Wire(), ME, WARDS, [b - a for a, b in NEW])  # type: ignore[arg-type]
    shards: Any = new
    target = Target(6, ME, shards, copies, [0, 0, 0], {"w": (6,)}, torch.float32, torch.device("cpu"))
    change, before = TakeOver(live, World(), target, source), live.all_held(0)
    with pytest.raises(RuntimeError, match="aborted"):
        change.run(old, Update(OptimizerConfig(learning_rate=0.1), 0.1, ()))  # type: ignore[arg-type]
    assert [held.generation for held in before] == [held.generation for held in live.all_held(0)] == [5]
