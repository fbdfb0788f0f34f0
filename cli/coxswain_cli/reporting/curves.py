"""Which curves a report shows: loss, gradient, rate, throughput, utilisation, idle share, the plan's distance to its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import nlargest
from itertools import accumulate, pairwise
from statistics import median

from coxswain.cost.error import error_of
from coxswain_cli.reporting.charts import POINTS, Chart, Series
from coxswain_cli.reporting.formatting import ratio, seconds, short, smooth, thin
from coxswain_cli.reporting.model import RecordedRun, RecordedStep

SMOOTH_FROM = 12  # with fewer steps the raw curve is enough
MOST_GAPS = 100  # that are marked: a damaged file may have one at every other step


def charts(run: RecordedRun) -> tuple[Chart, ...]:
    if not run.steps:
        return ()
    used = (_utilisation(run),) if any(s.mfu is not None for s in run.steps) else ()
    found = (
        _loss(run),
        _gradient(run),
        _rate(run),
        _throughput(run),
        *used,
        _idle(run),
        *_predicted(run),
        _planned(run),
    )
    marks = _marks(run)
    return tuple(replace(chart, marks=marks) for chart in found)


def _loss(run: RecordedRun) -> Chart:
    losses = _values(run, lambda s: s.loss)
    known = [v for v in losses if v is not None]
    note = f"{short(known[0])} at first, {short(known[-1])} at last, {short(min(known))} at best" if known else ""
    return _chart(
        run, "Loss", "nats per token", note, (*_with_average("loss", 0, losses), *_held_out(run)), from_zero=False
    )


def _held_out(run: RecordedRun) -> tuple[Series, ...]:
    """The loss on held-out documents, held between evaluations; no curve without an evaluation."""
    losses = _values(run, lambda s: s.evaluation_loss)
    if all(v is None for v in losses):
        return ()
    return (
        Series("held out", 3, tuple(accumulate(losses, lambda known, new: known if new is None else new)), "dashed"),
    )


def _gradient(run: RecordedRun) -> Chart:
    norms = _values(run, lambda s: s.gradient_norm)
    return _chart(run, "Gradient norm", "before clipping", "", _with_average("norm", 2, norms))


def _rate(run: RecordedRun) -> Chart:
    return _chart(run, "Learning rate", "", "", (Series("rate", 4, _values(run, lambda s: s.learning_rate)),))


def _utilisation(run: RecordedRun) -> Chart:
    shares = _values(run, lambda s: None if s.mfu is None else 100 * s.mfu)
    note = "model FLOPs of a step over what the devices could do at most in its time"
    return _chart(run, "Model FLOPs utilisation", "% of the peak", note, _with_average("MFU", 1, shares))


def _throughput(run: RecordedRun) -> Chart:
    rates = _values(run, lambda s: ratio(s.tokens, s.seconds))
    note = f"median step {seconds(median(s.seconds for s in run.steps))}"
    return _chart(run, "Throughput", "tokens per second", note, _with_average("rate", 1, rates))


def _idle(run: RecordedRun) -> Chart:
    idle = _values(run, lambda s: 100 * s.idle_fraction)
    waits = _values(run, lambda s: ratio(100 * s.data_wait_seconds, s.seconds))
    rows = (Series("idle", 2, idle), Series("wait for data", 3, waits, "dashed"))
    return _chart(
        run, "Idle share", "% of device time", "solid: without compute; dashed: the longest wait for data", rows
    )


def _predicted(run: RecordedRun) -> tuple[Chart, ...]:
    """Measured step times beside those of the cost model; nothing where an older run has none."""
    planned = _values(run, lambda s: s.planned_seconds or None)
    off = error_of((s.planned_seconds, s.seconds) for s in run.steps)
    rows = (Series("measured", 1, _values(run, lambda s: s.seconds)), Series("predicted", 4, planned, "dashed"))
    note = f"solid: measured; dashed: predicted by the cost model, off by {100 * off.p50:.1f} % in the median"
    return (_chart(run, "Step time", "seconds", note, rows),) if off.count else ()


def _planned(run: RecordedRun) -> Chart:
    ratios = _values(run, lambda s: s.makespan_over_bound or None)
    note = "1 means that no plan could end earlier under the cost model"
    return _chart(
        run, "Plan quality", "planned makespan / lower bound", note, (Series("ratio", 4, ratios),), from_zero=False
    )


def _values(run: RecordedRun, of: Callable[[RecordedStep], float | None]) -> tuple[float | None, ...]:
    return tuple(of(s) for s in run.steps)


def _with_average(name: str, colour: int, values: tuple[float | None, ...]) -> tuple[Series, ...]:
    """The curve, and its average over a twentieth of the run: of the points that are drawn, however long the run is."""
    if len(values) < SMOOTH_FROM:
        return (Series(name, colour, values),)
    points = thin(values, POINTS)
    average = Series("average", colour, tuple(smooth(points, max(2, len(points) // 40))))
    return Series(name, colour, values, "faint"), average


def _chart(
    run: RecordedRun, title: str, unit: str, note: str, series: tuple[Series, ...], *, from_zero: bool = True
) -> Chart:
    return Chart(title, unit, tuple(s.step for s in run.steps), series, note, from_zero)


def _marks(run: RecordedRun) -> tuple[tuple[int, str], ...]:
    """Vertical lines in every curve: where the world changed, and where a curve goes straight over missing steps."""
    changes = [
        (b.step, f"world generation {b.worldGeneration}")
        for a, b in pairwise(run.steps)
        if a.worldGeneration != b.worldGeneration
    ]
    return tuple(sorted((*changes, *_gaps(run))))


def _gaps(run: RecordedRun) -> list[tuple[int, str]]:
    """The first step after each of the longest gaps."""
    pairs = ((a.step + 1, b.step) for a, b in pairwise(run.steps) if b.step > a.step + 1)
    longest = nlargest(MOST_GAPS, pairs, key=lambda gap: gap[1] - gap[0])
    return [
        (after, f"no lines of steps {first} to {after - 1}" if after > first + 1 else f"no line of step {first}")
        for first, after in longest
    ]
