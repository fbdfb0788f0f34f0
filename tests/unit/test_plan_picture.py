"""`cox plan step --picture`: an SVG whose shapes are the plan's tasks, at their times, on their replicas."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.assemble import assemble
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import drafts_of, simulate
from coxswain.plan.values import Placement
from coxswain_cli.reporting import looks, plan_picture, rows
from coxswain_cli.reporting.bars import Bar
from tests.browser import BROWSER, browser

NS = "{http://www.w3.org/2000/svg}"
CAPACITY = 8192


def problem(replicas: int, context: int = 32 * 1024) -> Problem:
    lengths = draw_lengths("byted", context=context, tokens=32 * 1024 * replicas, seed=3)
    cost = CostModel(load_constants("h100-80g"))
    return make_problem(lengths, replicas=replicas, capacity=CAPACITY, cost=cost, max_degree=replicas, node_size=8)


def planned(balance: str, replicas: int, context: int = 32 * 1024) -> Placement:
    step = problem(replicas, context)
    return assemble(step, balance, planner(balance)(step))


def in_waves() -> Placement:
    """Two packs of unequal lengths, and behind a barrier one more on the replica that is free first."""
    step = make_problem(
        [4000, 800, 500],
        replicas=2,
        capacity=CAPACITY,
        cost=CostModel(load_constants("h100-80g")),
        max_degree=2,
        node_size=8,
    )
    return assemble(step, "waves", [Draft((0,), (0,)), Draft((1,), (1,)), Draft((1,), (2,), 1)])


def panels(svg: str) -> list[ET.Element]:
    return [g.find(f"{NS}svg") for g in ET.fromstring(svg).iter(f"{NS}g")]  # type: ignore[misc]


def share(text: str) -> float:
    return float(text.removesuffix("%")) / 100


def spans(panel: ET.Element, replicas: int, length: float) -> list[tuple[int, float, float, str]]:
    """(replica, start, stop, class) of each task's rect, blocks counted once a replica."""
    height = float(panel.attrib["height"]) / replicas
    found = []
    for rect in panel.iter(f"{NS}rect"):
        if rect.attrib["class"].startswith("d"):
            top, tall = float(rect.attrib["y"]) / height, float(rect.attrib["height"]) / height
            start = share(rect.attrib["x"]) * length
            stop = start + share(rect.attrib["width"]) * length
            found += [(r, start, stop, rect.attrib["class"]) for r in range(round(top), round(top + tall))]
    return sorted(found)


def expected(step: Problem, placement: Placement) -> list[tuple[int, float, float, str]]:
    drafts = drafts_of(placement)
    times = simulate(step, drafts)
    return sorted(
        (r, start, start + took, looks.look_of(len(draft.members)))
        for draft, start, took in zip(drafts, times.starts, times.seconds, strict=True)
        for r in draft.members
    )


@pytest.mark.parametrize("balance", ["makespan", "static", "naive"])
def test_every_task_is_a_bar_on_its_replicas_at_its_start_for_its_duration(balance: str) -> None:
    placement = planned(balance, 16)
    (panel,) = panels(plan_picture.picture([placement]))
    length = max(placement.makespan_seconds, placement.lower_bound_seconds)
    wanted = expected(problem(16), placement)
    found = spans(panel, 16, length)
    assert [(r, look) for r, _, _, look in found] == [(r, look) for r, _, _, look in wanted]
    for (_, *times, _), (_, *right, _) in zip(found, wanted, strict=True):
        assert times == pytest.approx(right, abs=2e-5 * length)


@pytest.mark.parametrize("balance", ["makespan", "static"])
def test_a_thousand_replicas_show_the_same_times_in_fewer_shapes(balance: str) -> None:
    placement = planned(balance, 1024, context=512 * 1024)
    svg = plan_picture.picture([placement])
    (panel,) = panels(svg)
    length = max(placement.makespan_seconds, placement.lower_bound_seconds)
    busy = sum(stop - start for _, start, stop, _ in spans(panel, 1024, length))
    assert busy == pytest.approx(sum(t.seconds * len(t.replicas) for t in placement.tasks), rel=1e-3)
    assert len(list(panel.iter(f"{NS}rect"))) < sum(len(t.replicas) for t in placement.tasks) / 2
    assert float(panel.attrib["height"]) == 1024
    assert len(svg) < 600_000


def test_plans_beside_each_other_share_rows_and_seconds_a_pixel() -> None:
    ours, rival = planned("makespan", 16), planned("naive", 16)
    left, right = panels(plan_picture.picture([ours, rival]))
    assert left.attrib == right.attrib
    (idle_left,), (idle_right,) = ([r for r in p if r.attrib.get("class") == "idle"] for p in (left, right))
    ratio = share(idle_left.attrib["width"]) / share(idle_right.attrib["width"])
    assert ratio == pytest.approx(ours.makespan_seconds / rival.makespan_seconds, rel=1e-4)


@pytest.mark.parametrize("balance", ["makespan", "naive"])
def test_makespan_and_bound_are_lines_at_their_seconds_and_what_no_task_covers_is_idle(balance: str) -> None:
    placement = planned(balance, 16)
    (panel,) = panels(plan_picture.picture([placement]))
    end = placement.makespan_seconds
    lines = {line.attrib["class"]: share(line.attrib["x1"]) * end for line in panel.iter(f"{NS}line")}
    assert lines["makespan"] == pytest.approx(end)
    assert lines["bound"] == pytest.approx(placement.lower_bound_seconds, rel=1e-4)
    busy = sum(stop - start for _, start, stop, _ in spans(panel, 16, end))
    assert 1 - busy / (16 * end) == pytest.approx(placement.idle_fraction, abs=1e-3)


def test_a_wave_is_a_line_where_it_begins_and_a_plan_without_waves_has_none() -> None:
    placement = in_waves()
    (panel,) = panels(plan_picture.picture([placement]))
    (wave,) = [line for line in panel.iter(f"{NS}line") if line.attrib["class"] == "wave"]
    assert share(wave.attrib["x1"]) * placement.makespan_seconds == pytest.approx(placement.tasks[0].seconds, rel=1e-4)
    assert spans(panel, 2, placement.makespan_seconds)[-1][1] == pytest.approx(placement.tasks[0].seconds, rel=1e-4)
    assert 'class="wave"' not in plan_picture.picture([planned("makespan", 4)])


def test_the_picture_says_in_words_what_it_shows_and_every_bar_says_its_task() -> None:
    root = ET.fromstring(plan_picture.picture([planned("makespan", 4), planned("static", 4)]))
    assert root.attrib["role"] == "img"
    title, description = (root.findtext(f"{NS}*[@id='{name}']") for name in root.attrib["aria-labelledby"].split())
    assert title == "makespan beside static: 4 replicas"
    assert (description or "").count("x its lower bound") == 2
    bars = [r for r in root.iter(f"{NS}rect") if re.fullmatch(r"d\d+", r.attrib["class"]) and r.attrib.get("y", "")]
    said = [title.text for bar in bars if (title := bar.find(f"{NS}title")) is not None]
    assert len(said) >= 16
    assert all(
        re.fullmatch(r"task \d+: (pack|ring over \d+ replicas), .* tokens, planned .*", text or "") for text in said
    )


def test_the_file_loads_nothing() -> None:
    svg = plan_picture.picture([planned("makespan", 4)])
    assert re.findall(r"(?:href|src|url\(|@import|<script)", svg.replace("url(#wait)", "")) == []


@pytest.mark.parametrize(
    ("degree", "look"), [(1, "d1"), (2, "d2"), (3, "d4"), (4, "d4"), (5, "d8"), (33, "d64"), (64, "d64"), (900, "d64")]
)
def test_a_ring_has_the_shade_of_its_degree(degree: int, look: str) -> None:
    assert looks.look_of(degree) == look


def test_the_legend_names_just_the_shades_that_are_drawn() -> None:
    assert looks.legend([1, 2, 3, 40]) == (
        ("d1", "pack"), ("d2", "ring of 2"), ("d4", "of 3 to 4"), ("d64", "of 33 and more"),
    )  # fmt: skip


def bar(start: float, stop: float, look: str = "d1", label: str = "") -> Bar:
    return Bar(start, stop, look, label, "")


def test_thin_packs_join_only_where_they_touch_and_rings_never() -> None:
    row = (bar(0, 1), bar(1, 2), bar(2.5, 3), bar(3, 4, "d2"), bar(4, 5, "d2"))
    assert [(b.start, b.stop) for b in rows.joined(row)] == [(0, 2), (2.5, 3), (3, 4), (4, 5)]


def test_a_ring_over_neighbours_is_one_block_and_over_others_a_block_a_run() -> None:
    ring = bar(0, 1, "d4")
    found = rows.blocks([(ring,), (ring,), (bar(0, 1),), (ring,)])
    assert sorted((b.top, b.rows) for b in found if b.bar == ring) == [(0, 2), (3, 1)]


@pytest.mark.parametrize(("count", "height"), [(1, 22), (4, 88), (64, 480), (1024, 1024), (12288, 1024)])
def test_rows_share_a_screen_and_are_a_pixel_or_more_up_to_a_thousand(count: int, height: float) -> None:
    assert rows.row_height(count) * count == pytest.approx(height)
    named = rows.names(count)
    assert named[0][0] == 0
    assert len(named) <= height / rows.LETTERS + 1


def colours() -> dict[str, dict[str, str]]:
    day, night = (Path(plan_picture.__file__).with_name("palette.css")).read_text().split("@media")
    return {k: dict(re.findall(r"--(\w+): (#\w+)", part)) for k, part in (("day", day), ("night", night))}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    hexes = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(hexes[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("time", ["day", "night"])
def test_numbers_on_bars_can_be_read_and_shades_rise_with_the_degree(time: str) -> None:
    known = {name: luminance(colour) for name, colour in colours()[time].items()}
    shades = [f"d{most}" for most in looks.DEGREES]
    for shade in shades:
        ink = known["ground"] if shade in ("d32", "d64") else known["ink"]
        low, high = sorted((ink, known[shade]))
        assert (high + 0.05) / (low + 0.05) >= 4.5, shade
    rings = [known[shade] for shade in shades[1:]]
    assert rings == sorted(rings, reverse=time == "day")


@pytest.mark.skipif(not BROWSER, reason="this machine has no browser")
@pytest.mark.timeout(60)
def test_a_browser_draws_the_bars_where_the_plan_has_them(tmp_path: Path) -> None:
    placement = planned("makespan", 4)
    file = tmp_path / "plan.svg"
    file.write_text(plan_picture.picture([placement]))
    boxes = """[...document.querySelectorAll('.picture rect.idle, .picture rect[class^="d"]')]
      .map(e => e.getBoundingClientRect()).map(b => [b.left, b.right, b.top])"""
    with browser() as page:
        page.open(file.as_uri(), width=980)
        (idle, *bars) = page.evaluate(boxes)
    width = idle[1] - idle[0]
    found = sorted((round(top), (left - idle[0]) / width, (right - idle[0]) / width) for left, right, top in bars)
    wanted = sorted(
        (r, start / placement.makespan_seconds, stop / placement.makespan_seconds)
        for r, start, stop, _ in expected(problem(4), placement)
    )
    assert len(found) == len(wanted)
    for (_, *drawn), (_, *right) in zip(found, wanted, strict=True):
        assert drawn == pytest.approx(right, abs=0.01)


@pytest.mark.parametrize(
    ("bound", "end", "bound_words", "end_words"),
    [
        (0.9, 1.0, ("end", 0.9), ("end", 1.0)),
        (0.05, 0.9, (None, 0.05), ("end", 0.9)),
        (0.05, 0.07, (None, 0.07), (None, 0.07)),
        (0.25, 0.3, (None, 0.3), ("end", 0.3)),
        (0.3, 0.34, ("end", 0.3), ("end", 0.34)),
    ],
)
def test_the_words_of_the_marks_keep_clear_of_both_lines(
    bound: float, end: float, bound_words: tuple[str | None, float], end_words: tuple[str | None, float]
) -> None:
    """Beside a plan of one second: words are left of their line where there is room, else right of the last one."""
    plan = msgspec.structs.replace(planned("makespan", 4), makespan_seconds=end, lower_bound_seconds=bound)
    long = msgspec.structs.replace(plan, makespan_seconds=1.0)
    left, _ = ET.fromstring(plan_picture.picture([plan, long])).iter(f"{NS}g")
    inner = float(left.find(f"{NS}svg").attrib["width"])  # type: ignore[union-attr]
    texts = {(t.text or "").split()[0]: t.attrib for t in left.iter(f"{NS}text")}
    for word, (anchor, at) in (("lower", bound_words), ("makespan", end_words)):
        found = [a for name, a in texts.items() if name == word and "y" in a and a.get("class") != "head"]
        assert [a.get("class") for a in found] == [anchor]
        assert float(found[0]["x"]) == pytest.approx(at * inner + (-5 if anchor else 5), abs=0.01)
