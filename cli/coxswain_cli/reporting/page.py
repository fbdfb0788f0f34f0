"""The page: a report in one HTML file that loads nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib

from coxswain_cli.reporting import charts, curves, mix, summary, timeline, trainers
from coxswain_cli.reporting.assets import asset
from coxswain_cli.reporting.formatting import seconds
from coxswain_cli.reporting.looks import legend
from coxswain_cli.reporting.markup import Markup, join, tag
from coxswain_cli.reporting.model import RecordedRun, RecordedStep, StepTiming


def page(run: RecordedRun) -> str:
    """The report of a run."""
    style, script = "".join(map(asset, ("palette.css", "page.css", "timeline.css"))), asset("page.js")
    # The hash lets only this script run: a flaw in the escaping could execute nothing.
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'"
    head = join((
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("title", f"{run.name}: report"),
        Markup(f"<style>{style}</style>"),
    ))  # fmt: skip
    content = tag("body", PATTERNS, tag("main", *body(run)), Markup(f"<script>{script}</script>"))
    return f"<!doctype html>\n{tag('html', tag('head', head), content, lang='en')}\n"


def body(run: RecordedRun) -> tuple[Markup, ...]:
    return (
        summary.heading(run),
        summary.tiles(run),
        _section("Training", tag("div", *map(charts.draw, curves.charts(run)), class_="cards")),
        _section("Sources", tag("div", mix.section(run), class_="cards")),
        _section("Steps: planned and measured", _pictures(run)),
        _section("Trainers, slowest first", trainers.section(run.trainers)),
        _section("Events", summary.events(run)),
        _section("End", summary.end(run)),
    )


def _section(title: str, content: Markup) -> Markup:
    return tag("section", tag("h2", title), content)


def _pictures(run: RecordedRun) -> Markup:
    if not run.chosen:
        return tag("p", "no timings recorded", class_="empty")
    lines = {s.step: s for s in run.steps}
    return join((_legend(run), *(_step(timing, lines.get(timing.step), why) for timing, why in run.chosen)))


def _legend(run: RecordedRun) -> Markup:
    """What the colours mean: of many ranks those of degrees, else those of sequences."""
    if not any(timeline.many(timing) for timing, _ in run.chosen):
        return BY_SEQUENCE
    degrees = {len(task.replicas) for timing, _ in run.chosen for task in timing.planned}
    shades = (tag("span", tag("i", class_=look), f" {words}") for look, words in legend(degrees))
    return tag("p", *shades, WAITS, class_="legend")


def _step(timing: StepTiming, line: RecordedStep | None, why: str) -> Markup:
    facts = (
        f"{seconds(line.seconds)}, {line.sequences} sequences, {line.tokens:,} tokens, "
        f"idle {100 * line.idle_fraction:.0f} %"
        if line
        else ""
    )
    title = tag("summary", tag("b", f"Step {timing.step}"), f" {why} ", tag("span", facts, class_="unit"))
    return tag("details", title, timeline.draw(timing), open="")


PATTERNS = Markup(
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" class="hatch-ground"/><rect width="2" height="6" class="hatch-line"/></pattern></defs></svg>'
)
WAITS = Markup('<span><i class="wait"></i> waiting</span><span><i class="reduce"></i> reduction and update</span>')
BY_SEQUENCE = Markup(
    '<p class="legend"><span><i class="b0"></i><i class="b1"></i><i class="b2"></i> rings, a colour a sequence</span>'
    f'<span><i class="pack"></i> packs of short sequences</span>{WAITS}'
    " The number is the task's; pale is forward, full is backward.</p>"
)
