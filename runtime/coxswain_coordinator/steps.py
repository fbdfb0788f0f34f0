"""Closes a step: reports and digests become one line of steps.jsonl and one of timings.jsonl."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import digests
from coxswain.config import JobConfig, ModelConfig
from coxswain.cost import peak_tflops
from coxswain.cost.hardware import Hardware, step_seconds
from coxswain.errors import Refused
from coxswain.flops import loss_layers, step_flops, utilisation
from coxswain.layout import Layout, Seat, loss_ranks, token_ranks
from coxswain.models import parameter_specs
from coxswain.plan.pipelines.simulation import loads
from coxswain.plan.starts import starts
from coxswain.plan.values import Task
from coxswain.structs import prepare
from coxswain.wire import DeliveredDigests, StepLine, StepPlan, StepReport, TaskTiming, Totals, World


class PlannedTask(msgspec.Struct, frozen=True):
    """A task as planned: seconds since the step began, both passes, by the cost model."""

    task: int
    kind: str  # pack | ring
    replicas: tuple[int, ...]
    sequences: tuple[int, ...]  # positions in the membership
    tokens: int
    start: float
    stop: float


class RankTiming(msgspec.Struct, frozen=True):
    """What one rank measured, in seconds.

    `timings`: arrays of (task, "F" or "B", start, stop, waited).
    """

    rank: int
    replica: int
    stage: int
    trainer: int
    device: int
    seconds: float  # of the whole step
    compute: float
    data_wait: float
    reduce: float
    timings: tuple[TaskTiming, ...]
    ended: float = 0.0  # unix time by the rank's clock
    tensor: int = 0
    share: float = 1.0  # of a task's planned seconds: 1 on the replica's slowest stage


class TimingLine(msgspec.Struct, frozen=True):
    """One line of `timings.jsonl`: planned beside measured.

    As in steps.jsonl, a line of a step makes those of it and of later steps before it void.
    """

    step: int
    worldGeneration: int
    replicas: int
    seconds: float  # measured, slowest rank
    makespan: float  # planned
    planned: tuple[PlannedTask, ...]
    ranks: tuple[RankTiming, ...]


class Closed(NamedTuple):
    """A closed step."""

    line: StepLine
    timing: TimingLine
    reports: Mapping[int, StepReport]  # by rank


class StepTracker:
    """Reports of the open steps of one generation. Steps close in order, each exactly once.

    `shares`: by rank, its part of a task's planned seconds.
    """

    def __init__(
        self, seats: tuple[Seat, ...], first_step: int, stream_digest: str, shares: Mapping[int, float] | None = None
    ) -> None:
        self.seats, self._shares = seats, shares or {}
        self.open = first_step  # the first step that is not closed
        self.stream_digests = {first_step: stream_digest}  # before that step
        self.reports: dict[int, dict[int, StepReport]] = defaultdict(dict)  # of steps that are not closed, by rank
        self.delivered: dict[int, dict[int, str]] = defaultdict(dict)  # their digests, by sequence

    def add_report(self, report: StepReport) -> None:
        if report.step >= self.open:
            self.reports[report.step][report.rank] = report

    def add_delivered(self, served: DeliveredDigests) -> None:
        """Raises Refused when a sequence has other tokens than those reported before."""
        if served.step < self.open:
            return
        known = self.delivered[served.step]
        for position, digest in served.digests:
            if known.setdefault(position, digest) != digest:
                raise Refused(
                    "StreamChanged",
                    f"step {served.step}, sequence {position}: its tokens differ from those read before; a source changed "
                    "while it was read. Restore it, or start a new run with a fresh checkpoint.uri",
                )

    def missing_ranks(self) -> list[int]:
        """Ranks that have not reported the open step."""
        return [s.rank for s in self.seats if s.rank not in self.reports[self.open]]

    def missing_digests(self, plan: StepPlan) -> int:
        return len(plan.sequences) - len(self.delivered[self.open])

    def _is_complete(self, plan: StepPlan, world_over: bool) -> bool:
        """Counts first: this is asked at every report of every rank."""
        reports = self.reports[self.open]
        if len(reports) < len(self.seats) and not (world_over and any(r.totals for r in reports.values())):
            return False
        return not self.missing_digests(plan) and (world_over or not self.missing_ranks())

    @property
    def shares(self) -> Mapping[int, float]:
        """By rank, its part of a task's planned seconds; a rank that is not in it has all of them."""
        return self._shares

    def close(self, plan: StepPlan, now: float, world_over: bool = False) -> Closed | None:
        """Closes the open step once all reports and digests are there; `plan` is its plan.

        `world_over`: no other report will come. One with totals is enough then.
        """
        if not self._is_complete(plan, world_over):
            return None
        reports, served = self.reports.pop(plan.step), self.delivered.pop(plan.step)
        ordered = [served[i] for i in range(len(plan.sequences))]
        digest = digests.chain(self.stream_digests[plan.step], plan.step, plan.sequences, ordered)
        self.open = plan.step + 1
        self.stream_digests[self.open] = digest
        return Closed(
            step_line(plan, reports, self.seats, digest, now),
            timing_line(plan, reports, self.seats, self._shares),
            reports,
        )


def shares(layout: Layout, model: ModelConfig) -> dict[int, float]:
    """By rank, its part of a task's planned seconds, which are those of the replica's slowest stage."""
    loss, found = loss_layers(model), {}
    for seat in layout.ranks():
        parts = loads(layout.replicas[seat.replica], loss)
        found[seat.rank] = parts[seat.stage] / max(parts)
    return found


def step_line(
    plan: StepPlan, reports: Mapping[int, StepReport], seats: tuple[Seat, ...], stream_digest: str, now: float
) -> StepLine:
    """loss = sum of token losses / valid tokens; idle = 1 - compute / (ranks x step seconds); `time` is when the first rank ended
    the step, by its clock: the line may arrive much later (`now`), after a coordinator was away.

    Losses and tokens count once a replica, whatever its stages and tensor groups; times are of all ranks. Losses and norms
    are finite here: `JobState.add_report` ends a job that diverges.
    """
    ranks = [reports[rank] for rank in sorted(reports)]
    seconds = max(r.seconds for r in ranks)
    busy = sum(r.compute_seconds for r in ranks)
    totals = _totals(reports, seats)
    by_source: dict[str, int] = defaultdict(int)
    for sequence in plan.sequences:
        by_source[sequence.source] += sequence.tokens
    return StepLine(
        step=plan.step,
        worldGeneration=plan.generation,
        tokens=sum(s.tokens for s in plan.sequences),
        sequences=len(plan.sequences),
        loss=totals.loss_sum / max(1, plan.labels),
        stream_digest=stream_digest,
        delivered_digest=f"{totals.delivered:016x}",
        seconds=seconds,
        idle_fraction=1 - busy / (len(ranks) * seconds) if seconds else 0.0,
        makespan_over_bound=plan.makespan_over_bound,
        gradient_norm=ranks[0].gradient_norm or 0.0,
        learning_rate=ranks[0].learning_rate,
        tokens_by_source=dict(sorted(by_source.items())),
        data_wait_seconds=max(r.data_wait_seconds for r in ranks),
        time=ranks[0].ended or now,
        balance=plan.balance or UNSET,
        **_evaluated(plan, reports, loss_ranks(seats)),
    )


def _totals(reports: Mapping[int, StepReport], seats: tuple[Seat, ...]) -> Totals:
    """Sums over the ranks that count, or what a rank knows of them all where some reports never came."""
    if any(seat.rank not in reports for seat in seats):
        return next(r.totals for r in reports.values() if r.totals)
    loss = sum(reports[rank].loss_sum or 0.0 for rank in sorted(loss_ranks(seats)))
    return Totals(loss, reduce(digests.add, (reports[rank].delivered for rank in token_ranks(seats))))


def _evaluated(plan: StepPlan, reports: Mapping[int, StepReport], losses: Collection[int]) -> dict[str, Any]:
    """Fields of the line of a step that an evaluation follows. Without a label, or not finite, the loss is None.

    `losses`: the ranks that count it.
    """
    if plan.evaluation is None:
        return {}
    sums = [reports[rank].evaluation_loss_sum if rank in reports else None for rank in sorted(losses)]
    known = [s for s in sums if s is not None]
    return {
        "evaluation_loss": sum(known) / plan.evaluation.labels
        if len(known) == len(sums) and plan.evaluation.labels
        else None,
        "evaluation_tokens": plan.evaluation.tokens,
        "evaluation_seconds": max(r.evaluation_seconds for r in reports.values()),
    }


def with_utilisation(job: JobConfig, world: World, plan: StepPlan, line: StepLine) -> StepLine:
    """The line with the share of the devices' peak that the step reached, where the peak and the model are known."""
    peak = peak_tflops(job.parallelism.hardware)
    if not peak or job.model.custom:
        return line
    flops = step_flops(job.model, world.vocabulary, (s.tokens for s in plan.sequences))
    return replace(line, mfu=utilisation(flops, line.seconds, len(world.seats), peak))


def with_prediction(line: StepLine, plan: StepPlan, beside_tasks: float) -> StepLine:
    return replace(line, planned_seconds=plan.makespan_seconds + beside_tasks)


def seconds_beside_tasks(model: ModelConfig, world: World, hardware: Hardware) -> float:
    """Predicted seconds of a step's reduction and update: of the ranks that hold most, if all hold equal parts.

    A model of the user's own has shapes that only workers know: 0.
    """
    if model.custom:
        return 0.0
    layout = world.layout
    parameters = sum(prod(spec.shape) for spec in parameter_specs(model, world.vocabulary))
    devices = min(sum(len(stage.devices) for stage in replica.stages) for replica in layout.replicas)
    inside = len({seat.device.trainer for seat in world.seats}) == 1
    return step_seconds(hardware.rates, -(-parameters // devices), len(layout.replicas), inside)


def timing_line(
    plan: StepPlan, reports: Mapping[int, StepReport], seats: tuple[Seat, ...], shares: Mapping[int, float]
) -> TimingLine:
    present = (seat for seat in seats if seat.rank in reports)
    ranks = tuple(_rank_timing(seat, reports[seat.rank], shares.get(seat.rank, 1.0)) for seat in present)
    return TimingLine(
        step=plan.step,
        worldGeneration=plan.generation,
        replicas=len({s.replica for s in seats}),
        seconds=max(r.seconds for r in ranks),
        makespan=plan.makespan_seconds,
        planned=planned_tasks(plan.tasks),
        ranks=ranks,
    )


def _rank_timing(seat: Seat, report: StepReport, share: float) -> RankTiming:
    return RankTiming(
        rank=seat.rank, replica=seat.replica, stage=seat.stage, trainer=seat.device.trainer, device=seat.device.device,
        seconds=report.seconds, compute=report.compute_seconds, data_wait=report.data_wait_seconds,
        reduce=report.reduce_seconds, timings=report.timings, ended=report.ended, tensor=seat.tensor, share=share,
    )  # fmt: skip


def planned_tasks(tasks: tuple[Task, ...]) -> tuple[PlannedTask, ...]:
    """Planned times of tasks, in their order."""
    begin, out = starts(tasks), []
    for task in sorted(tasks, key=lambda t: t.index):
        sequences = tuple(sorted({s.sequence for s in task.slices}))
        tokens = sum(s.stop - s.start for s in task.slices)
        start, stop = begin[task.index], begin[task.index] + task.seconds
        out.append(PlannedTask(task.index, task.kind, task.replicas, sequences, tokens, start, stop))
    return tuple(out)


prepare(__name__)
