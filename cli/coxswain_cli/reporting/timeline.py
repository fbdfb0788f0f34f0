"""Draws the planned and the measured timeline of one step by rank, one above the other."""

from __future__ import annotations

from coxswain_cli.reporting.bars import Rows, coarse_rows, end, measured_rows, planned_rows
from coxswain_cli.reporting.formatting import seconds, ticks
from coxswain_cli.reporting.looks import by_degree, by_sequence
from coxswain_cli.reporting.markup import Markup, join, percent, tag
from coxswain_cli.reporting.model import StepTiming
from coxswain_cli.reporting.rows import are_thin, names, row_height, shapes

SAME_SCALE = 3.0  # beyond this ratio of lengths, planned and measured get a time axis each


def draw(timing: StepTiming) -> Markup:
    look = by_degree(timing.planned) if many(timing) else by_sequence(timing.planned)
    planned, measured = planned_rows(timing, look), (coarse_rows if many(timing) else measured_rows)(timing, look)
    ends = end(planned), end(measured)
    apart = min(ends) > 0 and max(ends) / min(ends) > SAME_SCALE
    lengths = ends if apart else (max(ends), max(ends))
    note = ", on a time axis of its own: the cost model and this machine differ much" if apart else ""
    return join((
        _panel("Planned", "replica by seconds, cost model", planned, lengths[0], note),
        _panel("Measured", "rank by seconds since it began the step", measured, lengths[1], ""),
    ))  # fmt: skip


def many(timing: StepTiming) -> bool:
    """Whether there are too many ranks for a colour a sequence."""
    return are_thin(len(timing.ranks))


def _panel(title: str, unit: str, rows: Rows, length: float, note: str) -> Markup:
    words = f"{seconds(end(rows))} long{note}"
    heading = tag("figcaption", tag("b", title), tag("span", unit, class_="unit"), tag("output"), tag("small", words))
    if not any(rows.values()) or length <= 0:
        return tag("figure", heading, tag("p", "nothing recorded", class_="empty"), class_="picture")
    return tag("figure", heading, _plot(title, rows, length), class_="picture")


def _plot(title: str, rows: Rows, length: float) -> Markup:
    scale = [t for t in ticks(0.0, length) if t <= length]
    grid = join(_grid(t / length) for t in scale)
    drawing = tag(
        "svg", grid, shapes(tuple(rows.values()), length), height=row_height(len(rows)) * len(rows), role="img",
        aria_label=f"{title} tasks by rank and time",
    )  # fmt: skip
    xs = join(tag("span", f"{t:g}", style=f"left:{percent(t / length)}") for t in scale)
    columns = (_names(list(rows)), tag("div", drawing, class_="drawing"), tag("div", xs, class_="xs"))
    return tag("div", *columns, class_="plot")


def _names(ranks: list[int]) -> Markup:
    named = names(len(ranks))
    return tag("div", join(tag("span", str(ranks[row]), style=f"top:{y:g}px") for row, y in named), class_="ys")


def _grid(at: float) -> Markup:
    return tag("line", x1=percent(at), x2=percent(at), y1=0, y2="100%", class_="grid")
