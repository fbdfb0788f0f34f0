"""What a worker process keeps of the training state from world to world.

A step is reduced, agreed on, then updated: in this order each rank says so here, and nothing else changes what it holds.
So at any abort `held` says what the next world can begin with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import OptimizerConfig
from coxswain.live import Held, Pending
from coxswain_train.parallel.state import State
from coxswain_train.parallel.updates import check_norm, take_step
from coxswain_train.parallel.zero1 import GlobalStats


@dataclass(slots=True)
class PendingStep:
    """A step between its reduction and its update."""

    step: int
    gradient: Tensor  # of the own shard
    copied: Tensor | None  # of the ward's shard
    loss_sum: float  # of this rank
    agreed: GlobalStats | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """One rank's part of a step that was updated and is not reported yet. `loss_sum`: its own."""

    step: int
    loss_sum: float


@dataclass(slots=True)
class Cut:
    """The shard of one rank of the layout of a generation, after `step` steps; with it, maybe, a copy of its ward's."""

    generation: int
    rank: int
    step: int
    own: State
    ward: int | None = None
    copy: State | None = None
    pending: PendingStep | None = None
    agreed: GlobalStats | None = None  # of the step before `step`
    whole: bool = True  # False while an update changes values

    def held(self, device: int) -> Held | None:
        """None where an update broke off: its values are of no step. Another thread than that of the steps may ask."""
        step = self.pending  # which an update forgets
        pending: Pending = "" if step is None else "Reduced" if step.agreed is None else "Agreed"
        copies = () if self.ward is None else (self.ward,)
        return Held(device, self.generation, self.rank, self.step, pending, copies) if self.whole else None

    def update(self, config: OptimizerConfig, rate: float, matrices: Collection[str]) -> Finished:
        """The pending step's update, of the own shard and of the copy: the same function of the same gradient."""
        pending = self.pending
        assert pending is not None
        assert pending.agreed is not None
        check_norm(pending.agreed.norm, pending.step)
        self.whole = False
        for state, gradient in ((self.own, pending.gradient), (self.copy, pending.copied)):
            if state is not None and gradient is not None:
                take_step(state, gradient, pending.agreed.norm, config, rate, pending.step, matrices)
        self.step, self.pending, self.agreed, self.whole = pending.step + 1, None, pending.agreed, True
        return Finished(pending.step, pending.loss_sum)


@dataclass(slots=True)
class LiveState:
    """One for a worker process. `prepared`: cut for the next layout, complete, while it is unknown whether all ranks have it."""

    current: Cut | None = None
    prepared: Cut | None = None
    weights: Mapping[Box, Tensor] | None = None  # what the model holds, whole, as after `current.step` steps
    unreported: Finished | None = None
    _room: State = field(default_factory=State)

    @property
    def own(self) -> State:
        """Of the own shard; room that may be used again where nothing is held."""
        return self._room if self.current is None else self.current.own

    def all_held(self, device: int) -> tuple[Held, ...]:
        """What this worker, of this device, holds; two where a change of layout was cut short by its vote: other ranks may have
        only one of them."""
        found = (cut.held(device) for cut in (self.current, self.prepared) if cut is not None)
        return tuple(held for held in found if held is not None)

    def forget(self) -> None:
        """Holds nothing any more: the state comes from the seed or from a checkpoint. Room is kept."""
        self._room = self.own
        self.current = self.prepared = self.weights = self.unreported = None

    def begin(self, cut: Cut) -> None:
        self.current, self.prepared, self.weights = cut, None, None

    def choose(self, generation: int) -> Cut | None:
        """What is held of that generation."""
        cuts = (cut for cut in (self.current, self.prepared) if cut is not None and cut.whole)
        return next((cut for cut in cuts if cut.generation == generation), None)

    def keep(self, cut: Cut | None) -> None:
        """Gives up all but this."""
        if cut is not self.current:
            self.weights = None
        self.current, self.prepared, self._room = cut, None, State()

    def reduced(self, pending: PendingStep) -> None:
        assert self.current is not None
        self.current.pending = pending

    def agreed(self, stats: GlobalStats) -> None:
        assert self.current is not None
        assert self.current.pending is not None
        self.current.pending.agreed = stats

    def update(self, config: OptimizerConfig, rate: float, matrices: Collection[str]) -> None:
        """Updates own shard and copy. Weights are of the step before until they are `spread`."""
        assert self.current is not None
        self.weights = None
        self.unreported = self.current.update(config, rate, matrices)

    def spread(self, weights: Mapping[Box, Tensor]) -> None:
        self.weights = weights
