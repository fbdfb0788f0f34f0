"""Draws the planned and the measured timeline of one step by rank, one above the other.

Horizontal places are percentages of the drawing: it fits any width while letters and rows keep their size.
"""

from __future__ import annotations

from coxswain_cli.reporting.bars import Bar, Rows, end, measured_rows, planned_rows
from coxswain_cli.reporting.formatting import seconds, ticks
from coxswain_cli.reporting.markup import Markup, join, percent, tag
from coxswain_cli.reporting.model import StepTiming

TALLEST = 480.0  # pixels of rows, shared by all ranks
ROW = 22.0
LETTERS = 14.0  # pixels that a number needs
SAME_SCALE = 3.0  # beyond this ratio of lengths, planned and measured get a time axis each
LABEL_FROM = 0.07  # share of the width from which a bar has room for its number


def draw(timing: StepTiming) -> Markup:
    planned, measured = planned_rows(timing), measured_rows(timing)
    ends = end(planned), end(measured)
    apart = min(ends) > 0 and max(ends) / min(ends) > SAME_SCALE
    lengths = ends if apart else (max(ends), max(ends))
    note = ", on a time axis of its own: the cost model and this machine differ much" if apart else ""
    return join((
        _panel("Planned", "replica by seconds, cost model", planned, lengths[0], note),
        _panel("Measured", "rank by seconds since it began the step", measured, lengths[1], ""),
    ))  # fmt: skip


def _panel(title: str, unit: str, rows: Rows, length: float, note: str) -> Markup:
    words = f"{seconds(end(rows))} long{note}"
    heading = tag("figcaption", tag("b", title), tag("span", unit, class_="unit"), tag("output"), tag("small", words))
    if not any(rows.values()):
        return tag("figure", heading, tag("p", "nothing recorded", class_="empty"), class_="picture")
    return tag("figure", heading, _plot(title, rows, length), class_="picture")


def _plot(title: str, rows: Rows, length: float) -> Markup:
    height = max(4.0, min(ROW, TALLEST / len(rows)))
    scale = [t for t in ticks(0.0, length) if t <= length]
    grid = join(_grid(t / length) for t in scale)
    bars = join(_bar(bar, i * height, height, length) for i, row in enumerate(rows.values()) for bar in row)
    drawing = tag(
        "svg", grid, bars, height=height * len(rows), role="img", aria_label=f"{title} tasks by rank and time"
    )
    xs = join(tag("span", f"{t:g}", style=f"left:{percent(t / length)}") for t in scale)
    columns = (_names(list(rows), height), tag("div", drawing, class_="drawing"), tag("div", xs, class_="xs"))
    return tag("div", *columns, class_="plot")


def _names(ranks: list[int], height: float) -> Markup:
    """A number beside each row, or beside every n-th where rows are thin."""
    every = -(-int(LETTERS) // int(height))
    places = ((rank, i * height + height / 2) for i, rank in enumerate(ranks) if i % every == 0)
    return tag("div", join(tag("span", str(rank), style=f"top:{y:g}px") for rank, y in places), class_="ys")


def _grid(at: float) -> Markup:
    return tag("line", x1=percent(at), x2=percent(at), y1=0, y2="100%", class_="grid")


def _bar(bar: Bar, top: float, height: float, length: float) -> Markup:
    share = (bar.stop - bar.start) / length
    gap = 2.0 if height >= LETTERS else 0.0
    shape = tag(
        "rect", tag("title", bar.words), x=percent(bar.start / length), width=percent(share),
        y=top + gap / 2, height=height - gap, class_=bar.look,
    )  # fmt: skip
    if not bar.label or share < LABEL_FROM or height < LETTERS:
        return shape
    middle = percent((bar.start + bar.stop) / 2 / length)
    return join((shape, tag("text", bar.label, x=middle, y=top + height / 2)))
