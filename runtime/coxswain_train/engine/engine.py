"""One replica's engine: model, optimizer shard and process groups, and one step of them. Knows no coordinator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from coxswain.boxes import Box, full_box
from coxswain.config import EndpointConfig, ModelConfig, OptimizerConfig
from coxswain.errors import Refused
from coxswain.holdings import Holding
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain.parameter_groups import muon_matrices
from coxswain.plan.values import Operation
from coxswain.wire import TaskTiming
from coxswain_train.checkpoint.pretrained import load_pretrained
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.engine.step import Batch, Part, StepClock, TaskRunner, run_operations
from coxswain_train.model.init_weights import init_box
from coxswain_train.model.llama import Llama
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.parallel.shards import shards
from coxswain_train.parallel.state import State
from coxswain_train.parallel.zero1 import RankStats, Zero1Optimizer


@dataclass(frozen=True, slots=True)
class StepInput:
    """One rank's part of a step. `labels` are the valid ones of the whole step, `plan` a number that names the plan."""

    step: int
    parts: dict[int, Part]
    operations: Sequence[Operation]
    batch: Batch
    valid: int  # labels among this rank's tokens
    labels: int
    plan: int
    evaluation: Sequence[Operation] | None = None  # forward operations after the update; None: no evaluation follows


@dataclass(frozen=True, slots=True)
class StepResult:
    """One rank's result of a step. Times in seconds; `timings` count from the step's begin."""

    loss_sum: float
    gradient_norm: float
    learning_rate: float
    compute_seconds: float
    reduce_seconds: float
    timings: tuple[TaskTiming, ...]
    evaluation_loss_sum: float | None = None  # of this rank's held-out tokens; None: not evaluated
    evaluation_seconds: float = 0.0


class Engine:
    """Model state of one rank. Rank = replica, as long as replicas have one stage of one device."""

    def __init__(
        self, model: ModelConfig, vocabulary: int, optimizer: OptimizerConfig, total_steps: int, world: ProcessGroups,
        device: torch.device, dtype: torch.dtype, state: State | None = None,
    ) -> None:  # fmt: skip
        self._config, self._optimizer_config, self._total_steps, self._world = model, optimizer, total_steps, world
        self.model = Llama(model, vocabulary).to(device, dtype)
        self.shapes = {name: tuple(weight.shape) for name, weight in self.model.weights().items()}
        whole = tuple(Holding(full_box(name, shape)) for name, shape in self.shapes.items())
        matrices = muon_matrices(parameter_specs(model, vocabulary), optimizer)
        owners = shards([whole] * world.ranks, whole=matrices.__contains__)
        weights = self.model.weights()
        self.optimizer = Zero1Optimizer(weights, owners, world.rank, world, state, matrices=matrices)

    def initialise(
        self, seed: int, secrets: Path | None = None, endpoint: EndpointConfig | None = None, ids: int = 0
    ) -> None:
        """Fills the owned boxes from the job's seed, then from `initFrom` (at `endpoint`) if there is one.

        `ids`: of the tokenizer; 0: unknown.
        """
        self.optimizer.state.clear()
        boxes = self.optimizer.boxes()["parameter"]
        for box, values in boxes.items():
            values.copy_(torch.from_numpy(init_box(seed, box, self.shapes[box.name], self._config)))
        if self._config.init_from:
            load_pretrained(self._config.init_from, boxes, self.shapes, secrets, endpoint, self._config, ids)
        self.gather()

    def gather(self) -> None:
        """Sends the owned weights to every replica. Call it after the boxes were filled."""
        self.optimizer.all_gather()
        self.model.leave_out_empty_rows()

    def boxes(self) -> dict[str, dict[Box, torch.Tensor]]:
        """The owned state, by kind and box. After filling it, call `gather`."""
        return self.optimizer.boxes()

    def step(self, work: StepInput, began: float) -> StepResult:
        """Computes, reduces, updates and evaluates. If it raises before the vote on the step (`reduce_stats`), only gradients
        have changed. `began`: by `time.perf_counter`."""
        clock = StepClock(lambda: self._world.waited, began)
        runner = TaskRunner(self.model, work.batch, 1 / work.labels, self._world.rank, self._world.exchange)
        outcome = run_operations(
            runner, work.parts, work.operations, self.optimizer.accumulate, clock, self.optimizer.expect_last
        )
        computed = time.perf_counter()
        gradient = self.optimizer.reduce()
        stats = self.optimizer.reduce_stats(gradient, RankStats(outcome.loss_sum, work.valid, work.labels, work.plan))
        rate = learning_rate(self._optimizer_config, work.step, self._total_steps)
        self.optimizer.apply(gradient, stats, self._optimizer_config, rate, work.step)
        updated = time.perf_counter()
        return StepResult(
            loss_sum=outcome.loss_sum,
            gradient_norm=stats.norm,
            learning_rate=rate,
            compute_seconds=sum(t.stop - t.start - t.waited for t in outcome.timings),
            reduce_seconds=updated - computed,
            timings=tuple(outcome.timings),
            evaluation_loss_sum=self._evaluate(work, clock),
            evaluation_seconds=time.perf_counter() - updated,
        )

    @torch.no_grad()
    def _evaluate(self, work: StepInput, clock: StepClock) -> float | None:
        """Sum of the token losses of this rank's held-out tokens, by the forward operations of the evaluation."""
        if work.evaluation is None:
            return None
        runner = TaskRunner(self.model, work.batch, 0.0, self._world.rank, self._world.exchange)
        return run_operations(runner, work.parts, work.evaluation, self.optimizer.accumulate, clock).loss_sum


def check_layout(layout: Layout) -> None:
    """Refuses what this engine cannot run yet."""
    shapes = {(len(r.stages), max(len(s.devices) for s in r.stages)) for r in layout.replicas}
    if shapes - {(1, 1)}:
        raise Refused(
            "LayoutUnsupported",
            f"layout {layout.summary()}: parallelism.tensor and parallelism.pipeline must be 1 in this release",
        )
