"""The executor without a model: its own code for operations, links, rings and tensor groups, on tensors of a few bytes.

So thousands of plans run in one started world. A layer is a ring's hops and a tensor group's sums, and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from coxswain.layout import Layout, Seat
from coxswain.neighbours import neighbours_of, rank_of
from coxswain.plan.values import Operation, StageOperations, Task
from coxswain_train.engine.links import StageLinks
from coxswain_train.engine.step import Batch, TaskRunner, parts, run_operations
from coxswain_train.model.attention import TaskAttention
from coxswain_train.model.ring import RingKernel
from coxswain_train.model.tensor_parallel import TensorGroup, enter, leave
from coxswain_train.parallel.process_groups import ProcessGroups, SharedSums

WIDTH = 1
Plan = tuple[Layout, tuple[Task, ...], tuple[StageOperations, ...]]


@dataclass(frozen=True)
class BareLayer:
    group: TensorGroup | None

    def __call__(self, hidden: Tensor, rotary: Any, attend: TaskAttention) -> Tensor:
        inside = enter(hidden, self.group)
        if attend.heads or isinstance(attend.kernel, RingKernel):
            one = inside.expand(getattr(attend.heads, "share", 1), *inside.shape)  # a head for each member of a group
            inside = attend(one, one, one)[0]
        return hidden + leave(inside.clone(), self.group)


class BareModel:
    """A `Decoder` as far as the executor needs one."""

    def __init__(self, group: TensorGroup | None) -> None:
        self.stack = [BareLayer(group)]  # more layers repeat its messages
        self._weight = torch.ones(WIDTH, requires_grad=True)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return positions, positions

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self._weight * torch.ones(len(tokens), WIDTH)

    def token_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return hidden.sum()


class NoSums:
    """Gradients are not added up."""

    def expect_last(self) -> None: ...

    def accumulate(self) -> None: ...


def run_plans(world: ProcessGroups, file: Path) -> int:
    """Runs each of the file's plans on its first ranks, in order, and returns how many operations this rank ran."""
    pairs, done = _pairs(world), 0
    world.barrier()  # a rank without operations leaves at once, also while its peers still connect a pair
    for layout, tasks, lists in pickle.loads(file.read_bytes()):
        seat = next((s for s in layout.ranks() if s.rank == world.rank), None)
        if seat:
            mine = next(each for each in lists if (each.replica, each.stage) == (seat.replica, seat.stage))
            done += _run(world, layout, tasks, mine.operations, seat, pairs)
    return done


def _pairs(world: ProcessGroups) -> dict[int, TensorGroup]:
    """This rank's groups with the rank before and the one after, by the first rank. All ranks make all groups together."""
    groups = [dist.new_group([k, k + 1]) for k in range(world.ranks - 1)]
    mine = [k for k in (world.rank - 1, world.rank) if 0 <= k < len(groups)]
    return {k: SharedSums(groups[k], world.rank - k, 2, world.clock) for k in mine}


def _run(
    world: ProcessGroups, layout: Layout, tasks: tuple[Task, ...], operations: Sequence[Operation], seat: Seat,
    pairs: dict[int, TensorGroup],
) -> int:  # fmt: skip
    stage, ranks = layout.replicas[seat.replica].stages[seat.stage], rank_of(layout)
    group = pairs[seat.rank - seat.tensor] if len(stage.devices) > 1 else None
    mine = parts(tasks, seat.replica)
    nothing = torch.zeros(max((part.stop for part in mine.values()), default=0), dtype=torch.int64)
    everyone = world.exchange(tuple(range(world.ranks)))
    links = StageLinks(neighbours_of(layout, seat), everyone, WIDTH, torch.float32, torch.device("cpu"))
    runner = TaskRunner(
        BareModel(group),  # type: ignore[arg-type]
        Batch(nothing, nothing, nothing), 1.0, seat.replica,
        lambda members: world.exchange(tuple(ranks[r, seat.stage, seat.tensor] for r in members)), links.last,
    )  # fmt: skip
    with torch.set_grad_enabled(any(o.kind == "B" for o in operations)):
        outcome = run_operations(runner, links, mine, operations, NoSums(), world.clock)
    return len(outcome.spans)
