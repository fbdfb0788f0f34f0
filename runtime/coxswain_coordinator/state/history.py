"""Closed steps: for the run directory, for current measures, and until the store records them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from pathlib import Path

from coxswain.cost.error import error_of
from coxswain.trainer_figures import WINDOW_STEPS, StepFigures, TrainerFigures, step_figures, trainer_figures
from coxswain.wire import StepLine
from coxswain_coordinator.state.jsonl import JsonlWriter
from coxswain_coordinator.state.step_log import StepLog
from coxswain_coordinator.steps import TimingLine
from coxswain_link.metrics import MetricsRegistry as Metrics

_MOST_UNSAVED = 1024
"""Lines of closed steps that are kept in memory: half a MB, of 300 sources 16 MB."""


_MOST_TIMINGS = 256 << 20
"""Bytes of timings.jsonl: some 200 steps of 1,024 ranks, 200,000 of one rank."""

MOST_STEPS = 256 << 20
"""Bytes of steps.jsonl: some 470,000 steps, of 300 sources 45,000. The checkpoint location has the lines of all of them."""


class History:
    """The steps that this process has closed."""

    def __init__(self, run_dir: Path | None, metrics: Metrics, hardware: str = "cpu") -> None:
        self.steps = JsonlWriter(run_dir, "steps.jsonl", MOST_STEPS)
        self.timings = JsonlWriter(run_dir, "timings.jsonl", _MOST_TIMINGS)
        self.recent: deque[StepLine] = deque(maxlen=20)
        self.durations: deque[float] = deque(maxlen=20)  # of the latest steps in the present layout, in seconds
        self.log = StepLog()
        self.unsaved: list[StepLine] = []  # in no record of the store
        self.most_unsaved = _MOST_UNSAVED
        self._window: deque[StepFigures] = deque(maxlen=WINDOW_STEPS)  # of the current world
        self._figures: tuple[TrainerFigures, ...] | None = None
        self.evaluated: StepLine | None = None  # the latest that has an evaluation
        self._metrics, self._hardware = metrics, hardware

    def add(self, line: StepLine, timing: TimingLine, seats: Sized) -> None:
        self.steps.append(line)
        self.timings.append(timing)
        self.recent.append(line)
        self.durations.append(line.seconds)
        self.evaluated = line if line.evaluation_loss is not None else self.evaluated
        self.unsaved.append(line)
        figures = step_figures(timing.planned, timing.ranks)
        if len(figures) == len(seats):  # else some ranks were lost before their reports: their world is over
            self._window.append(figures)
        self._figures = None
        self.log.add(line, figures)
        self._measure(line)

    def begin_at(self, step: int, changed: bool = False) -> None:
        """Drops steps from this one on: a new world repeats them. `changed`: in another layout, they take as long as they do."""
        if changed:
            self.durations.clear()
        self.unsaved = [line for line in self.unsaved if line.step < step]
        self._window.clear()
        self._figures = None

    def before(self, step: int) -> list[StepLine]:
        """Lines to record with a checkpoint of this step."""
        return [line for line in self.unsaved if line.step < step]

    def recorded(self, step: int) -> None:
        """The store has the lines before this step."""
        self.unsaved = [line for line in self.unsaved if line.step >= step]

    def saved(self, step: int) -> None:
        """A checkpoint holds the steps before this one, whichever coordinator has made it. 0: there is none."""
        self.recorded(step)
        self._metrics["coxswain_checkpoint_step"].set(step)
        if (done := max(step - 1, self.recent[-1].step if self.recent else -1)) >= 0:
            self._metrics["coxswain_step"].set(done)

    @property
    def trainers(self) -> tuple[TrainerFigures, ...]:
        """Numbers by trainer of the current world, the slowest first."""
        if self._figures is None:
            self._figures = trainer_figures(self._window)
        return self._figures

    @property
    def piles_up(self) -> bool:
        return len(self.unsaved) >= self.most_unsaved

    @property
    def step_seconds(self) -> float:
        """Mean duration of the latest steps; 0: none yet."""
        return sum(line.seconds for line in self.recent) / len(self.recent) if self.recent else 0.0

    def _measure(self, line: StepLine) -> None:
        self._metrics["coxswain_step"].set(line.step)
        self._metrics["coxswain_loss"].set(line.loss)
        self._metrics["coxswain_gradient_norm"].set(line.gradient_norm)
        self._metrics["coxswain_learning_rate"].set(line.learning_rate)
        if line.mfu is not None:
            self._metrics["coxswain_model_flops_utilization"].labels(self._hardware).set(line.mfu)
        if line.evaluation_loss is not None:
            self._metrics["coxswain_evaluation_loss"].labels(line.evaluation_tokens).set(line.evaluation_loss)
            self._metrics["coxswain_evaluation_seconds"].observe(line.evaluation_seconds)
        self._metrics["coxswain_step_seconds"].observe(line.seconds)
        self._metrics["coxswain_idle_fraction"].set(line.idle_fraction)
        self._metrics["coxswain_makespan_over_bound"].set(line.makespan_over_bound)
        self._metrics["coxswain_planned_step_seconds"].set(line.planned_seconds)
        error = error_of((each.planned_seconds, each.seconds) for each in self.recent)
        if error.count:
            self._metrics["coxswain_cost_model_error"].set(error.p50)
        for source, tokens in line.tokens_by_source.items():
            self._metrics["coxswain_tokens_total"].labels(source).inc(tokens)
