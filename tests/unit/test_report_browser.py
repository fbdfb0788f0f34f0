"""The report in a real browser: nothing leads sideways on a phone, all can be read by day and by night, a finger gets answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.report import write_report
from tests.browser import BROWSER, Page, browser
from tests.unit import report_samples as samples

pytestmark = [pytest.mark.skipif(not BROWSER, reason="this machine has no browser"), pytest.mark.timeout(180)]

LONG = "a" * 63 + "-" + "b" * 63


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> str:
    return write_report(FolderReader(samples.write_run(tmp_path_factory.mktemp("run")))).as_uri()


@pytest.fixture(scope="module")
def unwieldy(tmp_path_factory) -> str:
    """Many ranks, and every name as long as names can be."""
    folder = samples.write_run(tmp_path_factory.mktemp("long"), steps=30, ranks=64)
    lines = [samples.step_line(k, tokens_by_source={LONG: 700, "docs": 300}) for k in range(30)]
    samples.write_lines(folder / "steps.jsonl", lines)
    events = [{"time": samples.BEGAN, "reason": "Failed" * 8, "message": f"s3://{LONG}/{LONG}", "object": LONG}]
    samples.write_lines(folder / "events.jsonl", events)
    condition = {"type": "Succeeded", "status": "False", "reason": "Failed", "message": f"s3://{LONG}/{LONG} is gone"}
    status = {"conditions": [condition], "lastCheckpoint": {"step": 3, "uri": f"s3://{LONG}/{LONG}", "time": ""}}
    samples.write_object(folder, "TrainingJob", LONG[:40], {"status": status})
    return write_report(FolderReader(folder)).as_uri()


def widest(page: Page, width: int) -> str:
    """What sticks out of the window on the right: tag, class and text."""
    script = f"""
      [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > {width} + 1)
        .map(e => e.tagName + "." + e.getAttribute("class") + " " + e.textContent.slice(0, 40)).join("; ")"""
    return str(page.evaluate(script))


@pytest.mark.parametrize("width", [320, 360, 740, 1400])
@pytest.mark.parametrize("which", ["report", "unwieldy"])
def test_a_page_of_any_width_leads_nowhere_sideways(page: Page, request, which: str, width: int) -> None:
    page.open(request.getfixturevalue(which), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, widest(page, width)
    assert page.evaluate("innerWidth") == width, "the page says nothing of the device's width"


def test_the_numbers_of_an_axis_do_not_break_at_its_end(page: Page, tmp_path: Path) -> None:
    task = {"task": 0, "kind": "pack", "replicas": [0], "sequences": [1], "tokens": 9, "start": 0.0, "stop": 0.804}
    timing = {"step": 0, "planned": [task], "ranks": [{"rank": 0, "timings": [[0, "F", 0.0, 0.804, 0.0]]}]}
    samples.write_lines(samples.write_run(tmp_path, steps=1) / "timings.jsonl", [timing])
    page.open(write_report(FolderReader(tmp_path)).as_uri(), width=320)
    assert "0.75" in page.evaluate("document.querySelector('.picture .xs').textContent")
    script = "[...document.querySelectorAll('.xs span, .ys span')].map(e => e.getClientRects()[0].height)"
    assert max(page.evaluate(script)) < 24


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_can_be_read_by_day_and_by_night(page: Page, report: str, scheme: str) -> None:
    page.open(report, scheme=scheme)
    ground = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for selector in ("body", "small", ".unit", ".good", ".bad", "dt", ".ys span"):
        ink = luminance(page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color"))
        low, high = sorted((ink, ground))
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector


def luminance(colour: str) -> float:
    """Relative luminance of an rgb(...) colour, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_planned_and_measured_bars_of_a_step_stand_in_one_picture_of_time(page: Page, report: str) -> None:
    page.open(report)
    script = """[...document.querySelectorAll("details")].map(d => [...d.querySelectorAll("figure")]
      .map(f => [f.querySelector("b").textContent, f.querySelectorAll("rect").length]))"""
    steps = page.evaluate(script)
    assert len(steps) == 3
    for planned, measured in steps:
        assert planned[0].startswith("Planned")
        assert measured[0].startswith("Measured")
        assert min(planned[1], measured[1]) >= 8


def test_a_touch_on_a_curve_or_a_bar_shows_its_values(page: Page, report: str) -> None:
    page.open(report)
    touch(page, "[data-chart] .drawing", "pointerdown")
    assert page.evaluate("document.querySelector('.chart output').textContent").startswith("step 29: loss ")
    touch(page, ".picture rect:not(defs rect)", "pointerover")
    assert "planned" in page.evaluate("document.querySelector('.picture output').textContent")


def touch(page: Page, selector: str, event: str) -> None:
    page.evaluate(f"""(() => {{
      const it = document.querySelector({selector!r}), box = it.getBoundingClientRect();
      const at = {{clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true}};
      it.dispatchEvent(new PointerEvent({event!r}, at));
    }})()""")


def test_the_page_asks_for_nothing_and_complains_of_nothing(page: Page, tmp_path: Path, report: str) -> None:
    page.open(report)
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
