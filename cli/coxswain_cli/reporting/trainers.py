"""Numbers by trainer over the latest steps: a table, and the words that name a slow one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coxswain.trainer_figures import FEWEST_STEPS, TrainerFigures, slow_words, step_figures, trainer_figures
from coxswain_cli.reporting.formatting import seconds
from coxswain_cli.reporting.markup import Markup, join, tag
from coxswain_cli.reporting.model import StepTiming

_ROWS = 64


def latest_figures(timings: Iterable[StepTiming]) -> tuple[TrainerFigures, ...]:
    """Of the steps that have the ranks of the last one; none where lines of an earlier release name no trainer."""
    steps = [step_figures(t.planned, t.ranks) for t in timings]
    same = [step for step in steps if step.keys() == steps[-1].keys()]
    return trainer_figures(same) if same and all(trainer >= 0 for trainer, _ in same[-1]) else ()


def words(figures: Sequence[TrainerFigures]) -> str:
    return slow_words(figures, "trainer-{}".format)


def section(figures: Sequence[TrainerFigures]) -> Markup:
    if not figures:
        return tag("p", "no timings recorded", class_="empty")
    none = (
        "No trainer is slow"
        if figures[0].steps >= FEWEST_STEPS
        else f"Fewer than {FEWEST_STEPS} steps name no slow one"
    )
    note = f"Each trainer's slowest rank, means over the last {figures[0].steps} steps. {words(figures) or none}."
    more = len(figures) - _ROWS
    rest = tag("p", f"{more} more, which are faster", class_="unit") if more > 0 else Markup("")
    return join((tag("p", note), tag("table", join(map(_row, figures[:_ROWS])), class_="facts"), rest))


def _row(f: TrainerFigures) -> Markup:
    compute, data, rest = (seconds(value) for value in (f.compute_seconds, f.data_wait_seconds, f.wait_seconds))
    pace = f", {f.slowdown:.2f} x the median for its work" if f.slowdown else ""
    text = f"rank {f.rank}: computes {compute}{pace}; waits {data} for data, {rest} for others"
    return tag("tr", tag("th", f"trainer-{f.trainer}"), tag("td", text))
