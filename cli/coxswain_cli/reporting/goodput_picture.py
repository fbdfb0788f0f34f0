"""Goodput over time, ours and rivals, as one SVG file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coxswain_cli.reporting.assets import asset
from coxswain_cli.reporting.formatting import ticks
from coxswain_cli.reporting.markup import Markup, join, tag

WIDTH, HEIGHT = 960.0, 300.0  # of the curves
LEFT, TOP, BOTTOM = 56.0, 64.0, 40.0
ROW = 20.0  # of the legend
COLUMNS = 4
_STYLE = (
    ".ours { stroke-width: 3; } polyline { fill: none; stroke-width: 1.5; } line.grid { stroke: var(--rule); }"
    + "".join(f" .k{i} {{ stroke: var(--c{i % 6}); {'stroke-dasharray: 5 3;' if i > 5 else ''} }}" for i in range(9))
)


def picture(found: dict[str, Any]) -> str:
    """From the report of `cox simulate`. Goodput 1: every device well, nothing lost."""
    runs, hours = found["runs"], found["seconds"] / 3600
    rows = -(-len(runs) // COLUMNS)
    tall = TOP + HEIGHT + BOTTOM + ROW * rows
    parts = (
        tag("title", f"Goodput of {', '.join(r['name'] for r in runs)}", id="title"),
        tag("desc", " ".join(f"{r['name']}: {r['goodput']:.3f}." for r in runs), id="desc"),
        Markup(f"<style>{asset('palette.css')}{asset('plan_picture.css')}{_STYLE}</style>"),
        tag("rect", width="100%", height="100%", class_="page"),
        tag("text", "Goodput over time", x=LEFT, y=26.0, class_="head"),
        tag(
            "text",
            f"{found['devices']} devices; the rest of a healthy cluster's is lost",
            x=LEFT,
            y=46.0,
            class_="soft",
        ),
        tag(
            "g",
            *_axes(hours),
            *map(_curve, range(len(runs) - 1, -1, -1), reversed(runs)),
            transform=f"translate({LEFT:g} {TOP:g})",
        ),
        _legend(runs, TOP + HEIGHT + BOTTOM + 12),
    )
    size = {"viewBox": f"0 0 {WIDTH:g} {tall:g}", "width": WIDTH, "height": tall}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", aria_labelledby="title desc", **size)


def _inner() -> float:
    return WIDTH - LEFT - 24


def _axes(hours: float) -> tuple[Markup, ...]:
    ys = [v / 4 for v in range(5)]
    lines = (tag("line", x1=0, x2=_inner(), y1=_y(v), y2=_y(v), class_="grid") for v in ys)
    values = (tag("text", f"{v:g}", x=-8.0, y=_y(v), class_="y") for v in ys)
    times = [t for t in ticks(0.0, hours) if t <= hours]
    labels = (tag("text", f"{t:g} h", x=t / hours * _inner(), y=HEIGHT + 20, class_="x") for t in times)
    return (*lines, *values, *labels)


def _y(value: float) -> float:
    return HEIGHT * (1 - min(value, 1.0))


def _curve(index: int, run: dict[str, Any]) -> Markup:
    values: Sequence[float] = run["curve"]
    width = _inner() / len(values)
    points = " ".join(f"{(i + 0.5) * width:.1f},{_y(v):.1f}" for i, v in enumerate(values))
    return tag("polyline", points=points, class_=f"k{index} ours" if index == 0 else f"k{index}")


def _legend(runs: Sequence[dict[str, Any]], top: float) -> Markup:
    parts = list[Markup]()
    for i, run in enumerate(runs):
        x, y = LEFT + i % COLUMNS * _inner() / COLUMNS, top + ROW * (i // COLUMNS)
        parts.append(
            tag("polyline", points=f"{x:g},{y - 4:g} {x + 22:g},{y - 4:g}", class_=f"k{i}" + " ours" * (i == 0))
        )
        parts.append(tag("text", f"{run['name']} {run['goodput']:.3f}", x=x + 28, y=y, class_="soft"))
    return join(parts)
