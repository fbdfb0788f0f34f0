"""One replica's engine: model, optimizer shard and world, with the step that binds them. Knows no coordinator and no files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from coxswain.boxes import Box
from coxswain.config import EndpointConfig, ModelConfig, OptimizerConfig
from coxswain.errors import Refused
from coxswain.layout import Layout
from coxswain.plan.values import Operation
from coxswain.wire import TaskTiming
from coxswain_train.init import init_box
from coxswain_train.model import Llama
from coxswain_train.schedule import learning_rate
from coxswain_train.shards import shard
from coxswain_train.step import Batch, Clock, Part, Walk, run_operations
from coxswain_train.weights import load_pretrained
from coxswain_train.world import World
from coxswain_train.zero import Tally, Zero


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank has to do in one step. `labels` are the valid ones of the whole step, `plan` a number that names it."""

    step: int
    parts: dict[int, Part]
    operations: Sequence[Operation]
    batch: Batch
    valid: int  # labels among this rank's tokens
    labels: int
    plan: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one rank knows after the update. Seconds; `timings` count from the step's begin."""

    loss_sum: float
    gradient_norm: float
    learning_rate: float
    compute_seconds: float
    reduce_seconds: float
    timings: tuple[TaskTiming, ...]


class Engine:
    """Model state of one rank. Rank = replica, as long as replicas have one stage of one device."""

    def __init__(
        self, model: ModelConfig, vocabulary: int, optimizer: OptimizerConfig, total_steps: int, world: World,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._config, self._optimizer, self._total_steps, self._world = model, optimizer, total_steps, world
        self.model = Llama(model, vocabulary).to(device, dtype)
        self.shapes = {name: tuple(weight.shape) for name, weight in self.model.weights().items()}
        shards = shard(self.shapes, world.ranks)
        self.zero = Zero(self.model.weights(), shards, world.rank, world)

    def initialise(self, seed: int, secrets: Path | None = None, endpoint: EndpointConfig | None = None) -> None:
        """Fresh state from the job's seed, then from `initFrom` (at `endpoint`) if there is one: every owner its own boxes."""
        boxes = self.zero.boxes()["parameter"]
        for box, values in boxes.items():
            values.copy_(torch.from_numpy(init_box(seed, box, self.shapes[box.name], self._config)))
        if self._config.init_from:
            load_pretrained(self._config.init_from, boxes, self.shapes, secrets, endpoint, self._config)
        self.zero.publish()

    def boxes(self) -> dict[str, dict[Box, torch.Tensor]]:
        """The owned state, by kind and box; `zero.publish` after it was filled."""
        return self.zero.boxes()

    def step(self, work: Work, began: float) -> StepResult:
        """Computes, reduces and updates. Nothing but gradients has changed if it raises. `began`: of `time.perf_counter`."""
        clock = Clock(lambda: self._world.waited, began)
        walk = Walk(self.model, work.batch, 1 / work.labels, self._world.rank, self._world.exchange)
        outcome = run_operations(walk, work.parts, work.operations, self.zero.fold, clock)
        computed = time.perf_counter()
        gradient = self.zero.reduce()
        agreed = self.zero.agree(gradient, Tally(outcome.loss_sum, work.valid, work.labels, work.plan))
        rate = learning_rate(self._optimizer, work.step, self._total_steps)
        self.zero.apply(gradient, agreed, self._optimizer, rate, work.step)
        return StepResult(
            loss_sum=outcome.loss_sum,
            gradient_norm=agreed.norm,
            learning_rate=rate,
            compute_seconds=sum(t.stop - t.start - t.waited for t in outcome.timings),
            reduce_seconds=time.perf_counter() - computed,
            timings=tuple(outcome.timings),
        )


def check_layout(layout: Layout) -> None:
    """Refuses what this engine cannot run yet."""
    shapes = {(len(r.stages), max(len(s.devices) for s in r.stages)) for r in layout.replicas}
    if shapes - {(1, 1)}:
        raise Refused(
            "LayoutUnsupported",
            f"layout {layout.summary()}: parallelism.tensor and parallelism.pipeline must be 1 in this release",
        )
