"""A plan as a picture: a row a replica, time from left to right; plans of several balances side by side.

One SVG file that loads nothing. Places within a panel are percentages of its width, so that 100 % is the same number of
seconds in all panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coxswain.layout import Layout
from coxswain.plan.pipelines.operations import times
from coxswain.plan.starts import starts
from coxswain.plan.values import Placement, Task
from coxswain_cli.reporting.assets import asset
from coxswain_cli.reporting.bars import Bar, operation_row, task_rows
from coxswain_cli.reporting.formatting import seconds, ticks
from coxswain_cli.reporting.looks import by_degree, legend
from coxswain_cli.reporting.markup import Markup, join, percent, tag
from coxswain_cli.reporting.model import PlannedTask
from coxswain_cli.reporting.rows import names, row_height, shapes

WIDTH = 960.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 20.0, 104.0, 56.0  # of a panel around its rows, and of the page
LETTER = 7.0  # pixels of a legend's letter
ROOM = 120.0  # pixels that the words of a mark need


@dataclass(frozen=True, slots=True)
class Panel:
    """One plan as rows of bars, each row with its label; `name` heads them."""

    name: str
    placement: Placement
    labels: tuple[str, ...]
    rows: tuple[tuple[Bar, ...], ...]

    @property
    def begins(self) -> tuple[float, ...]:
        """When each wave but the first begins, in seconds."""
        begin, tasks = starts(self.placement.tasks), self.placement.tasks
        later = sorted({task.wave for task in tasks if task.wave})
        return tuple(min(begin[task.index] for task in tasks if task.wave == wave) for wave in later)


def picture(placements: Sequence[Placement]) -> str:
    """The SVG of these plans of one step, a row a replica."""
    return picture_of([replica_panel(placement) for placement in placements])


def replica_panel(placement: Placement) -> Panel:
    planned = tasks_of(placement)
    rows = task_rows(planned, placement.replicas, by_degree(planned))
    return Panel(placement.balance, placement, tuple(map(str, rows)), tuple(rows.values()))


def stage_panel(placement: Placement, layout: Layout, loss: float) -> Panel:
    """A row a stage, labelled replica.stage: its operations, pale forward and full backward. `loss`: see `times`."""
    found, planned = times(layout, placement.tasks, placement.operations, loss), tasks_of(placement)
    rows = {
        f"{x.replica}.{x.stage}": operation_row(x.operations, found[x.replica, x.stage], planned, by_degree(planned))
        for x in placement.operations
    }
    return Panel(placement.balance, placement, tuple(rows), tuple(rows.values()))


def picture_of(panels: Sequence[Panel]) -> str:
    placements = [p.placement for p in panels]
    length = max(max(p.makespan_seconds, p.lower_bound_seconds) for p in placements) or 1.0
    tall = max(row_height(len(p.rows)) * len(p.rows) for p in panels)
    parts = (
        tag("title", " beside ".join(p.name for p in panels) + f": {placements[0].replicas} replicas", id="title"),
        tag("desc", " ".join(map(_sentence, panels)), id="desc"),
        Markup(f"<style>{asset('palette.css')}{asset('timeline.css')}{asset('plan_picture.css')}</style>"),
        tag("rect", width="100%", height="100%", class_="page"),
        *(_panel(p, length, i * WIDTH / len(panels), WIDTH / len(panels)) for i, p in enumerate(panels)),
        _legend(panels, TOP + tall + BOTTOM - 12),
    )
    size = {"viewBox": f"0 0 {WIDTH:g} {TOP + tall + BOTTOM:g}", "width": WIDTH, "height": TOP + tall + BOTTOM}
    about = {"role": "img", "aria_labelledby": "title desc"}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **size, **about)


def tasks_of(placement: Placement) -> tuple[PlannedTask, ...]:
    begin = starts(placement.tasks)
    return tuple(_planned(task, begin[task.index]) for task in placement.tasks)


def _planned(task: Task, begin: float) -> PlannedTask:
    sequences = tuple(dict.fromkeys(s.sequence for s in task.slices))
    tokens = sum(s.stop - s.start for s in task.slices)
    return PlannedTask(task.index, task.kind, task.replicas, begin, begin + task.seconds, sequences, tokens)


def _sentence(panel: Panel) -> str:
    waves = f", {len(panel.begins) + 1} waves" if panel.begins else ""
    return f"{panel.name}: {seconds(panel.placement.makespan_seconds)}, {_facts(panel.placement)}{waves}."


def _panel(panel: Panel, length: float, left: float, width: float) -> Markup:
    p, inner = panel.placement, width - LEFT - RIGHT
    rows, height = panel.rows, row_height(len(panel.rows)) * len(panel.rows)
    scale = [t for t in ticks(0.0, length) if t <= length]
    drawing = tag(
        "svg", _idle(p, length), *(_line(t, length, "grid") for t in scale), shapes(rows, length), *_marks(panel, length),
        y=TOP, width=inner, height=height, class_="picture", overflow="visible",
    )  # fmt: skip
    ys = (tag("text", panel.labels[row], x=-6.0, y=TOP + y, class_="y") for row, y in names(len(rows)))
    xs = (tag("text", f"{t:g} s", x=t / length * inner, y=TOP + height + 16, class_="x") for t in scale)
    return tag("g", *_head(panel, inner / length), drawing, *ys, *xs, transform=f"translate({left + LEFT:g} 0)")


def _head(panel: Panel, scale: float) -> tuple[Markup, ...]:
    """What stands above the rows; `scale`: pixels a second. The words of the two marks keep clear of their lines."""
    p = panel.placement
    end, bound = p.makespan_seconds * scale, p.lower_bound_seconds * scale
    near = bound < ROOM and end - bound < ROOM
    return (
        tag("text", panel.name, y=24.0, class_="head"),
        tag("text", _facts(p), y=42.0, class_="soft"),
        _words(f"makespan {seconds(p.makespan_seconds)}", end, 68.0, end > ROOM),
        _words("lower bound", end if near else bound, 86.0, bound > ROOM),
    )


def _facts(placement: Placement) -> str:
    rings = sum(task.kind == "ring" for task in placement.tasks)
    return (
        f"{placement.makespan_over_bound:.3f} x its lower bound, {100 * placement.idle_fraction:.1f} % idle, "
        f"{len(placement.tasks) - rings} packs, {rings} rings"
    )


def _words(text: str, x: float, y: float, left: bool) -> Markup:
    """Beside a mark, to its left or right."""
    return tag("text", text, x=x - 5, y=y, class_="end") if left else tag("text", text, x=x + 5, y=y)


def _idle(placement: Placement, length: float) -> Markup:
    """The ground of the plan: what no task covers is idle."""
    words = tag("title", f"idle: {100 * placement.idle_fraction:.1f} % of the replicas' time")
    return tag("rect", words, width=percent(placement.makespan_seconds / length), height="100%", class_="idle")


def _marks(panel: Panel, length: float) -> tuple[Markup, ...]:
    p = panel.placement
    waves = (_line(at, length, "wave", f"wave {i} begins: {seconds(at)}") for i, at in enumerate(panel.begins, start=2))
    bound = _line(p.lower_bound_seconds, length, "bound", f"lower bound: {seconds(p.lower_bound_seconds)}", above=14)
    end = _line(p.makespan_seconds, length, "makespan", f"makespan: {seconds(p.makespan_seconds)}", above=32)
    return (*waves, bound, end)


def _line(at: float, length: float, look: str, words: str = "", above: int = 0) -> Markup:
    place = percent(at / length)
    return tag("line", *([tag("title", words)] if words else ()), x1=place, x2=place, y1=-above, y2="100%", class_=look)


def _legend(panels: Sequence[Panel], y: float) -> Markup:
    degrees = {len(task.replicas) for panel in panels for task in panel.placement.tasks}
    entries, x, parts = [*legend(degrees), ("idle", "idle")], LEFT, list[Markup]()
    if any(panel.begins for panel in panels):
        entries.append(("wave", "a wave begins"))
    for look, words in entries:
        parts.append(tag("rect", x=x, y=y - 11, width=14, height=12, class_=look))
        parts.append(tag("text", words, x=x + 19, y=y, class_="soft"))
        x += 19 + LETTER * len(words) + 14
    return join(parts)
