"""Curves over steps. The drawing stretches with the page; labels beside it keep their size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coxswain_cli.reporting.formatting import short, thin, ticks, whole_ticks
from coxswain_cli.reporting.markup import Markup, join, percent, tag

POINTS = 600  # more than a phone has pixels
COLOURS = 6  # that the page's style has
SIZE = 1000  # units of a drawing, both ways


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: a value for each x, None where there is none. Of a chart with more steps also one for each drawn point."""

    name: str
    colour: int
    values: tuple[float | None, ...]
    stroke: Literal["bold", "faint", "dashed"] = "bold"


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves with a common x axis of step numbers. `marks` are vertical lines: (step, what happened)."""

    title: str
    unit: str
    steps: tuple[int, ...]
    series: tuple[Series, ...]
    note: str = ""
    from_zero: bool = True
    marks: tuple[tuple[int, str], ...] = ()


def draw(chart: Chart) -> Markup:
    """A figure: title, readout, curves, axes with units."""
    known = [v for s in chart.series for v in s.values if v is not None]
    if not known:
        return tag("figure", _caption(chart), tag("p", "no values", class_="empty"), class_="chart")
    low, high = min(known), max(known)
    scale = ticks(min(0.0, low) if chart.from_zero else low, high)
    return tag("figure", _caption(chart), _plot(chart, scale), class_="chart")


def _caption(chart: Chart) -> Markup:
    unit = tag("span", f"{chart.unit}, by step", class_="unit")
    return tag("figcaption", tag("b", chart.title), unit, tag("output"), tag("small", chart.note))


def _plot(chart: Chart, scale: tuple[float, ...]) -> Markup:
    first, last = chart.steps[0], max(chart.steps[-1], chart.steps[0] + 1)
    span = scale[-1] - scale[0]
    lines = join(_line(_across(i, len(scale))) for i in range(len(scale)))
    drawing = tag(
        "svg", lines, _marks(chart, first, last), _curves(chart, first, last, scale[0], span),
        viewBox=f"0 0 {SIZE} {SIZE}", preserveAspectRatio="none", role="img", aria_label=f"{chart.title} by step",
    )  # fmt: skip
    ys = join(tag("span", short(v), style=f"bottom:{percent((v - scale[0]) / span)}") for v in scale)
    xs = join(_x_label(v, first, last) for v in whole_ticks(first, last))
    hover = json.dumps(_readout(chart, first, last))
    body = (tag("div", ys, class_="ys"), tag("div", drawing, class_="drawing"), tag("div", xs, class_="xs"))
    return tag("div", *body, class_="plot", data_chart=hover)


def _x_label(step: int, first: int, last: int) -> Markup:
    return tag("span", f"{step:,}", style=f"left:{percent((step - first) / (last - first))}")


def _across(index: int, count: int) -> float:
    return SIZE * (1 - index / (count - 1))


def _line(y: float) -> Markup:
    return tag("line", x1=0, x2=SIZE, y1=y, y2=y, class_="grid")


def _marks(chart: Chart, first: int, last: int) -> Markup:
    places = ((SIZE * (step - first) / (last - first), what) for step, what in chart.marks)
    return join(tag("line", tag("title", what), x1=x, x2=x, y1=0, y2=SIZE, class_="mark") for x, what in places)


def _curves(chart: Chart, first: int, last: int, low: float, span: float) -> Markup:
    xs = [SIZE * ((x or 0.0) - first) / (last - first) for x in _thin_steps(chart)]
    return join(join(_curve(s, xs, low, span)) for s in chart.series)


def _curve(series: Series, xs: list[float], low: float, span: float) -> Iterator[Markup]:
    """One polyline a stretch without gaps; a single point becomes a short dash."""
    stretch: list[str] = []
    for x, value in zip([*xs, 0.0], [*thin(series.values, POINTS), None], strict=True):
        if value is not None:
            stretch.append(f"{x:.1f},{SIZE * (1 - (value - low) / span):.1f}")
        elif stretch:
            points = " ".join(stretch if len(stretch) > 1 else stretch * 2)
            yield tag("polyline", points=points, class_=f"curve {series.stroke} s{series.colour % COLOURS}")
            stretch = []


def _thin_steps(chart: Chart) -> list[float | None]:
    return thin([float(s) for s in chart.steps], POINTS)


def _readout(chart: Chart, first: int, last: int) -> dict[str, object]:
    """Returns what the page's script shows under the pointer."""
    steps = [round(x or 0.0) for x in _thin_steps(chart)]
    rows = [[s.name, [None if v is None else short(v) for v in thin(s.values, POINTS)]] for s in chart.series]
    return {"steps": steps, "first": first, "last": last, "unit": chart.unit, "series": rows}
