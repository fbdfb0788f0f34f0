"""ZeRO-1 by boxes (Rajbhandari et al., arXiv 1910.02054): gradients to their owners, updates there, weights back to all.

Each rank holds its boxes of the parameters; the master copy (fp32, or fp64 in tests) and both moments of a row exist only
on its owner, which is one of its holders. State changes only after all ranks have agreed on the step (`reduce_stats`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coxswain.boxes import Box
from coxswain.errors import Retryable
from coxswain.shards import Shards
from coxswain_train.parallel.buckets import BUCKET_BYTES
from coxswain_train.parallel.flights import Reduction
from coxswain_train.parallel.gradients import Gradients
from coxswain_train.parallel.norms import ROW, Square, norm_of, runs_of, square_of
from coxswain_train.parallel.routes import make_routes
from coxswain_train.parallel.state import State
from coxswain_train.parallel.weights import WeightSpreader


@dataclass(frozen=True, slots=True)
class RankStats:
    """One rank's part of a step's statistics. `plan`: a number below 2^53 that names the plan it followed."""

    loss_sum: float
    labels: int  # valid ones among its tokens
    step_labels: int  # that the plan promises for all ranks together
    plan: int
    delivered: int = 0  # its part of the delivered digest, unsigned 64 bits


@dataclass(frozen=True, slots=True)
class GlobalStats:
    """The statistics of a step over all ranks."""

    loss_sum: float
    norm: float  # global, before clipping
    delivered: int = 0  # the whole delivered digest


class Zero1Optimizer:
    """The optimizer of one rank: its boxes of the state, and the way to and from the parameters of all holders.

    `weights`: the boxes that the rank holds, by name. A `state` that is given keeps what it has until `make_room`.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], shards: Shards, me: int, reduction: Reduction,
        state: State | None = None, bucket_bytes: int = BUCKET_BYTES, in_parts: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._reduction, self._bucket_bytes, self._boxes = reduction, bucket_bytes, shards.boxes(me)
        self._runs = runs_of(self._boxes)
        self.elements = sum(box.elements for box in self._boxes)  # that are owned
        sample = next(iter(weights.values()))
        wide = self.wide = torch.promote_types(sample.dtype, torch.float32)  # of the state
        self._device, self.state = sample.device, state or State()
        if state is None:
            self.make_room()
        there, back = make_routes(shards, me, reduction.grid, sample.device, bucket_bytes // wide.itemsize)
        sole = shards.sole(me)
        self.gradients = Gradients(weights, there, sole, self.elements, wide, reduction, in_parts)
        self._spreader = WeightSpreader(weights, back, sole, reduction)

    def boxes(self) -> dict[str, dict[Box, Tensor]]:
        """The owned state by kind and box: views, to be filled or saved."""
        return self.state.boxes()

    def make_room(self) -> None:
        """For this rank's boxes, in `state`, which keeps what it has if they are its boxes already."""
        self.state.hold(self._boxes, self.wide, self._device)

    def time_aside(self, aside: Callable[[], AbstractContextManager[None]]) -> None:
        """`aside` is entered around buckets that leave within a backward: they are no work of the plan."""
        self.gradients.aside = aside

    def expect_last(self) -> None:
        """Call it before the step's last backward: gradients then leave while it runs."""
        self.gradients.expect_last()

    def accumulate(self) -> None:
        """After each backward: moves gradients of narrow parameters into fp32 sums."""
        self.gradients.accumulate()

    def reduce(self) -> Tensor:
        """The step's gradient of the owned boxes, summed in the order of ranks. Forgets the local gradients."""
        return self.gradients.reduce()

    def reduce_stats(self, gradient: Tensor, mine: RankStats) -> GlobalStats:
        """Exchanges loss, norm and plan with all ranks, in the step's one small collective."""
        square = square_of(gradient, self._runs, self._bucket_bytes // 8)
        digest = float(mine.delivered >> 32), float(mine.delivered & 0xFFFFFFFF)
        rows = self._reduction.scalars([*square.row(), mine.loss_sum, float(mine.labels), float(mine.plan), *digest])
        return check_stats(rows, mine)

    @torch.no_grad()
    def all_gather(self) -> None:
        """Copies the boxes of every owner into the parameters of every holder."""
        self._spreader.spread(self.state)


def check_stats(rows: list[list[float]], mine: RankStats) -> GlobalStats:
    """Sums the rows (square of the gradient, loss, labels, plan, digest) of all ranks. Raises Retryable when plans differ."""
    losses, labels, plans, high, low = zip(*(row[ROW:] for row in rows), strict=True)
    others = [rank for rank, plan in enumerate(plans) if plan != plans[0]]
    if others:
        raise Retryable(f"ranks {others} followed another step plan than rank 0; the step is discarded")
    if int(sum(labels)) != mine.step_labels:
        raise Retryable(f"the ranks trained on {int(sum(labels))} labels, the plan has {mine.step_labels}")
    delivered = ((int(sum(high)) << 32) + int(sum(low))) % (1 << 64)
    norm = norm_of([Square.of(row[:ROW]) for row in rows])
    return GlobalStats(loss_sum=sum(losses), norm=norm, delivered=delivered)
