"""One rank's engine: its part of the model, optimizer shard and process groups, and one step. Knows no coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from coxswain.boxes import Box
from coxswain.config import EndpointConfig, ModelConfig, OptimizerConfig
from coxswain.copies import node_numbers
from coxswain.errors import Refused
from coxswain.holdings import ParameterSpec, all_holdings, tensor_faults
from coxswain.layout import Layout, Seat
from coxswain.live import LiveSource
from coxswain.neighbours import neighbours_of, rank_of
from coxswain.parameter_groups import idle_groups, muon_matrices
from coxswain.plan.values import Operation
from coxswain.shards import Shards, shards
from coxswain.wire import TaskTiming
from coxswain_link.cgroup import CoreShare
from coxswain_train.checkpoint.pretrained import load_pretrained
from coxswain_train.engine.draws import seed_draws
from coxswain_train.engine.links import StageLinks
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.probe import Probe
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.engine.step import Batch, Part, StepClock, StepOutcome, TaskRunner, by_wave, run_waves
from coxswain_train.live.copies import Copies
from coxswain_train.live.state import Cut, LiveState, PendingStep
from coxswain_train.live.takeover import Moved, TakeOver, Target, Update
from coxswain_train.model.custom import decoder_of, placed, shared_weights, specs_of
from coxswain_train.model.init_weights import init_box
from coxswain_train.model.ring import Exchange
from coxswain_train.model.tensor_parallel import ModelPart
from coxswain_train.parallel.process_groups import ProcessGroups, settle
from coxswain_train.parallel.state import State
from coxswain_train.parallel.zero1 import GlobalStats, RankStats, Zero1Optimizer

LARGEST_HEAD = 256  # elements, of CUDA's flash attention


@dataclass(frozen=True, slots=True)
class StepInput:
    """One rank's part of a step. `labels` are the valid ones of the whole step, `plan` a number that names the plan.

    `parts` are those of its replica, `operations` those of its stage.
    """

    step: int
    parts: dict[int, Part]
    operations: Sequence[Operation]
    batch: Batch
    valid: int  # labels among this rank's tokens
    labels: int
    plan: int
    evaluation: Sequence[Operation] | None = None  # forward operations after the update; None: no evaluation follows
    waves: int = 1  # of the whole step's tasks
    delivered: int = 0  # this rank's part of the delivered digest, unsigned 64 bits


@dataclass(frozen=True, slots=True)
class StepResult:
    """One rank's result of a step. Times in seconds; `timings` count from the step's begin.

    `loss_sum` is 0 except on the rank of a replica that counts it (`Engine.counts`).
    """

    loss_sum: float
    gradient_norm: float
    learning_rate: float
    compute_seconds: float
    reduce_seconds: float
    timings: tuple[TaskTiming, ...]
    evaluation_loss_sum: float | None = None  # of this rank's held-out tokens; None: not evaluated
    evaluation_seconds: float = 0.0
    agreed: GlobalStats | None = None  # of all ranks


class Engine:
    """The model state of one seat (replica, stage, tensor) of a layout, and the steps on it."""

    def __init__(
        self, model: ModelConfig, vocabulary: int, optimizer: OptimizerConfig, total_steps: int, layout: Layout,
        seat: Seat, world: ProcessGroups, device: torch.device, dtype: torch.dtype, live: LiveState | None = None,
        memory: MemoryPolicy | None = None, generation: int = 0, wards: Sequence[int] = (),
        ids: int = 0, longest: int = 0,
    ) -> None:  # fmt: skip
        """`live`: what this process holds; kept until the state is filled or taken over. `wards`: by rank (`copies.wards_of`).

        `ids`, `longest`: as of `decoder_of`.
        """
        self._specs = specs = specs_of(model, vocabulary)
        _check_degrees(specs, layout)
        _check_heads(model, device)
        self._memory = memory or MemoryPolicy()
        self.before_update: Callable[[], None] = lambda: None  # runs in every step before its state changes
        self.seed = 0  # of what layers draw
        self._config, self._optimizer_config, self._total_steps, self._world = model, optimizer, total_steps, world
        self.seat, self._neighbours, self._ranks = seat, neighbours_of(layout, seat), rank_of(layout)
        stage = layout.replicas[seat.replica].stages[seat.stage]
        group = world.tensor_group(tuple(self._ranks[seat.replica, seat.stage, t] for t in range(len(stage.devices))))
        part = ModelPart(stage.start, stage.stop, model.layers, group)
        self.counts = part.last and not seat.tensor  # whether the replica's losses and labels count here
        self._everyone, self._device, self._dtype = world.exchange(tuple(range(world.ranks))), device, dtype
        self._ids = ids
        self.model = placed(decoder_of(model, vocabulary, part, ids, longest), device, dtype)
        self.shapes = {spec.name: spec.shape for spec in specs}
        self._matrices = muon_matrices(specs, optimizer)
        self._layout, self._generation = layout, generation
        self._shards = self._shards_of(layout)
        _check_groups(optimizer, self.shapes)
        _check_whole(self._matrices, self._shards, self.shapes)
        self.live, self.moved = live or LiveState(), Moved()
        parts = () if self._memory.recompute == "None" else shared_weights(self.model)
        self.optimizer = Zero1Optimizer(
            self.model.weights(), self._shards, seat.rank, world, self.live.own, in_parts=parts
        )
        self._copies = Copies(self._everyone, seat.rank, wards, self._shards.sizes())
        self.optimizer.time_aside(world.clock.waiting)
        self.short_probe, self.share = Probe(device), CoreShare()

    def _shards_of(self, layout: Layout) -> Shards:
        """Which rank owns which box of the state in a layout."""
        held = all_holdings(self._specs, layout, self._config.layers)
        return shards(held, whole=self._matrices.__contains__)

    def initialise(self, seed: int, secrets: Path | None = None, endpoint: EndpointConfig | None = None) -> None:
        """Fills the owned boxes from `initFrom` (at `endpoint`), or without it from the job's seed."""
        boxes = self.make_room()["parameter"]
        self.optimizer.state.clear()
        if self._config.init_from:
            load_pretrained(self._config.init_from, boxes, self.shapes, secrets, endpoint, self._config, self._ids)
        else:
            for box, values in boxes.items():
                values.copy_(torch.from_numpy(init_box(seed, box, self.shapes[box.name], self._config)))
        self.begin(0)

    def make_room(self) -> dict[str, dict[Box, torch.Tensor]]:
        """Gives up what the process holds of the state. The owned boxes by kind, to be filled; then call `begin`."""
        self.live.forget()
        self.optimizer.make_room()
        return self.optimizer.boxes()

    def begin(self, step: int) -> None:
        """The owned boxes are filled, as before step `step`: sends the weights to every replica, and fills copies."""
        cut = Cut(self._generation, self.seat.rank, step, self.optimizer.state)
        if self._copies.ward is not None:
            cut.ward, cut.copy = self._copies.ward, State()
            cut.copy.hold(self._shards.boxes(cut.ward), self.optimizer.wide, self._device)
            self._copies.fill(cut.own, cut.copy)
        settle(self._world, self._device)
        self.live.begin(cut)
        self._spread()

    def _spread(self) -> None:
        """Sends the owned weights to every replica."""
        self.optimizer.all_gather()
        self.model.leave_out_empty_rows()
        self._keep_weights()

    def _keep_weights(self) -> None:
        """The model's weights count as whole once all that was sent is there; else the next world gathers them again."""
        settle(self._world, self._device)
        self.live.spread(self._weights())

    def _weights(self) -> dict[Box, torch.Tensor]:
        """What the model holds."""
        weights = self.model.weights()
        holdings = self._shards.holdings[self._shards.group_of[self.seat.rank]]
        return {h.box: weights[h.box.name].detach() for h in holdings}

    def take_over(self, source: LiveSource, nodes: Sequence[str] = ()) -> None:
        """Takes the state from what the ranks of this world hold in memory; then this rank is ready for step `source.step`.

        `nodes`: of each trainer; (): unknown. Raises Retryable where the ranks do not hold what the source says, or what arrives
        is not what was sent; RuntimeError at an abort. Both leave the living state complete.
        """
        step = source.step - 1
        rate = learning_rate(self._optimizer_config, step, self._total_steps)
        old, target = self._shards_of(source.layout), self._target(nodes)
        change = TakeOver(self.live, self._world, target, source)
        self.optimizer.state = State()  # what is held is the living state's, and room of another world is given up
        change.run(old, Update(self._optimizer_config, rate, self._matrices))
        self.optimizer.state = self.live.own
        before, now = (list(all_holdings(self._specs, o, self._config.layers)) for o in (source.layout, self._layout))
        if change.spread(before, now, self._without_values(change.weights)):
            self.model.leave_out_empty_rows()
            self._keep_weights()
        else:
            self._spread()
        self.moved = change.moved

    def _without_values(self, held: Mapping[Box, torch.Tensor]) -> dict[Box, torch.Tensor]:
        """Room for weights that the model before did not hold in the same boxes. The others are its tensors from now on: nothing
        is copied. A model of the user's own may have views of its parameters, so it keeps them."""
        if self._config.custom is not None:
            return self._weights()
        parameters, found = self.model.weights(), self._weights()
        for box in found.keys() & held.keys():
            parameters[box.name].data = held[box]
            del found[box]
        return found

    def _target(self, nodes: Sequence[str]) -> Target:
        places = node_numbers(self._layout.ranks(), nodes)
        rank, wide = self.seat.rank, self.optimizer.wide
        return Target(self._generation, rank, self._shards, self._copies, places, self.shapes, wide, self._device)

    def boxes(self) -> dict[str, dict[Box, torch.Tensor]]:
        """The owned state, by kind and box."""
        return self.optimizer.boxes()

    def step(self, work: StepInput, began: float) -> StepResult:
        """Computes, reduces, updates and evaluates. If it raises before the vote on the step (`reduce_stats`), only gradients
        have changed. `began`: by `time.perf_counter`."""
        clock = StepClock(self._world.clock, began)
        outcome = self.compute(work)
        computed = clock.device.mark()
        loss_sum, valid = (outcome.loss_sum, work.valid) if self.counts else (0.0, 0)
        stats = self._agree(work, loss_sum, valid)
        rate = learning_rate(self._optimizer_config, work.step, self._total_steps)
        self.before_update()
        self.live.update(self._optimizer_config, rate, self._matrices)
        self.optimizer.all_gather()
        timings, reduced = clock.timings(outcome.spans), clock.device.between(computed, clock.device.mark())
        self._keep_weights()
        updated, computing = time.perf_counter(), sum(t.stop - t.start - t.waited for t in timings)
        self.share.step()
        result = StepResult(
            loss_sum=loss_sum,
            gradient_norm=stats.norm,
            learning_rate=rate,
            compute_seconds=computing,
            reduce_seconds=reduced,
            timings=timings,
            evaluation_loss_sum=self.evaluate(work),
            evaluation_seconds=time.perf_counter() - updated,
            agreed=stats,
        )
        self.live.unreported = None  # the caller reports it
        return result

    def _agree(self, work: StepInput, loss_sum: float, valid: int) -> GlobalStats:
        """Reduces the gradient, gives it to the holder of the copy, and agrees with all ranks on the step."""
        gradient = self.optimizer.reduce()
        copied = self._copies.exchange(gradient)
        settle(self._world, self._device)
        self.live.reduced(PendingStep(work.step, gradient, copied, loss_sum))
        mine = RankStats(loss_sum, valid, work.labels, work.plan, work.delivered)
        stats = self.optimizer.reduce_stats(gradient, mine)
        self.live.agreed(stats)
        return stats

    def probe(self) -> float:
        """Seconds of the short probe, between two steps."""
        return self.short_probe.seconds(self.share.value if self._device.type == "cpu" else 1.0)

    def compute(self, work: StepInput) -> StepOutcome:
        """Runs the operations of this rank's stage. Gradients are in the parameters then."""
        seed_draws(self.seed, self.seat.replica, work.step)
        return self._run(work, by_wave(work.parts, work.operations, work.waves), 1 / max(1, work.labels))

    @torch.no_grad()
    def evaluate(self, work: StepInput) -> float | None:
        """Sum of the token losses of this rank's held-out tokens, by the forward operations of the evaluation."""
        if work.evaluation is None:
            return None
        self.model.train(False)
        outcome = self._run(work, [work.evaluation], 0.0)
        self.model.train(True)
        return outcome.loss_sum if self.counts else 0.0

    def _run(self, work: StepInput, waves: Sequence[Sequence[Operation]], scale: float) -> StepOutcome:
        links = StageLinks(self._neighbours, self._everyone, self._config.hidden, self._dtype, self._device)
        runner = TaskRunner(self.model, work.batch, scale, self.seat.replica, self.ring, links.last, self._memory)
        world = self._world
        return run_waves(runner, links, work.parts, waves, self.optimizer, world.clock, world.barrier)

    def ring(self, replicas: tuple[int, ...]) -> Exchange:
        """The ring of the ranks that have this stage and tensor index in these replicas."""
        return self._world.exchange(tuple(self._ranks[r, self.seat.stage, self.seat.tensor] for r in replicas))


def _check_groups(optimizer: OptimizerConfig, names: Collection[str]) -> None:
    """Refuses groups that choose no parameter. `resolve` judges all models but those of users' own."""
    for place, why in idle_groups(optimizer.groups, names).items():
        some = ", ".join(list(names)[:4])
        raise Refused(
            "GroupMatchesNothing",
            f"optimizer.groups[{place}].match {optimizer.groups[place].match!r} {why}; names are such as {some}",
        )


def _check_whole(matrices: Collection[str], owned: Shards, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses a layout whose tensor groups split what Muon needs whole."""
    split = sorted({c.box.name for c in owned.cells if c.box.name in matrices and c.box.shape != shapes[c.box.name]})
    if split:
        raise Refused("MuonUnsupported", f"optimizer.kind Muon: {split[0]} is split over a tensor group; use AdamW")


def _check_degrees(specs: Sequence[ParameterSpec], layout: Layout) -> None:
    if faults := tensor_faults(specs, (len(s.devices) for r in layout.replicas for s in r.stages)):
        raise Refused("LayoutUnsupported", f"layout {layout.summary()}: parallelism.tensor: {faults[0]}")


def _check_heads(model: ModelConfig, device: torch.device) -> None:
    """Refuses heads for which CUDA's flash attention has no kernel. Those of a user's own model are not known."""
    size = model.size_of_head
    if device.type == "cuda" and model.custom is None and (size % 8 or size > LARGEST_HEAD):
        raise Refused(
            "HeadSizeUnsupported",
            f"model.config.headSize: heads of {size} elements; on CUDA a multiple of 8, at most {LARGEST_HEAD}; change "
            "headSize, or hidden and heads",
        )
