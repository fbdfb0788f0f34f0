"""The texts and tables of a report: end, key figures, events, checkpoints, stream digests."""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import median
from typing import Any

from coxswain.cost.error import error_of
from coxswain_cli.reporting.formatting import ratio, seconds, seconds_of, short
from coxswain_cli.reporting.markup import Markup, join, tag
from coxswain_cli.reporting.model import RecordedEvent, RecordedRun

HINT = "Touch or point at a curve or a bar to read it."
BAD = {"Failed", "NodeLost", "PodDisrupted", "WorkerRestarted"}


def heading(run: RecordedRun) -> Markup:
    """Returns the job's name and state."""
    condition = succeeded(run.status)
    state = condition.get("reason") or "State unknown"
    words = condition.get("message") or ""
    look = {"True": "good", "False": "bad"}.get(str(condition.get("status")), "open")
    small = (_when(run), *run.notes, HINT)
    return tag(
        "header",
        tag("h1", run.name),
        tag("p", tag("b", state, class_=look), " ", words),
        *(tag("p", line, class_="unit") for line in small),
    )


def succeeded(status: dict[str, Any]) -> dict[str, str]:
    """Returns the condition with the job's state; empty when there is none."""
    conditions = status.get("conditions") or ()
    return next((c for c in conditions if isinstance(c, dict) and c.get("type") == "Succeeded"), {})


def _when(run: RecordedRun) -> str:
    times = [t for t in (*(seconds_of(s.time) for s in run.steps), *(e.time for e in run.events)) if t]
    if not times:
        return ""
    return f"{_utc(min(times))} to {_utc(max(times))} UTC, {seconds(max(times) - min(times))} in all"


def tiles(run: RecordedRun) -> Markup:
    """The key figures, large."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in figures(run)), class_="tiles")


def figures(run: RecordedRun) -> tuple[tuple[str, str], ...]:
    if not run.steps:
        return (("steps", "none"),)
    losses = [s.loss for s in run.steps if s.loss is not None]
    held_out = [s.evaluation_loss for s in run.steps if s.evaluation_loss is not None]
    used = [s.mfu for s in run.steps if s.mfu is not None]
    off = error_of((s.planned_seconds, s.seconds) for s in run.steps)
    total = run.job.total_steps if run.job else 0
    spent = sum(s.seconds for s in run.steps)
    tokens = sum(s.tokens for s in run.steps)
    idle = sum(s.idle_fraction * s.seconds for s in run.steps)
    return (
        ("steps", f"{run.steps[-1].step + 1:,}" + (f" of {total:,}" if total else "")),
        ("last loss", short(losses[-1]) if losses else "none"),
        *((("last loss on held-out documents", short(held_out[-1])),) if held_out else ()),
        ("tokens", short(tokens)),
        ("tokens per second", "unknown" if (rate := ratio(tokens, spent)) is None else short(rate)),
        ("median step", seconds(median(s.seconds for s in run.steps))),
        *((("prediction of steps off by", f"{100 * off.p50:.1f} % (p95 {100 * off.p95:.0f} %)"),) if off.count else ()),
        *((("model FLOPs utilisation", f"{100 * median(used):.1f} %"),) if used else ()),
        ("idle share", "unknown" if (share := ratio(100 * idle, spent)) is None else f"{share:.1f} %"),
    )


def strategy(run: RecordedRun) -> tuple[tuple[str, str], ...]:
    """What mode Auto has chosen, with the median step beside the predicted one, and the other layouts; nothing in mode Fixed."""
    if not (chosen := run.status.get("strategy")):
        return ()
    measured = f", {seconds(median(s.seconds for s in run.steps))} measured" if run.steps else ""
    others = (f"{o['layout']} {o['predictedStepSeconds']} s" for o in chosen.get("alternatives") or ())
    return (
        ("layout by mode Auto", f"{chosen['layout']}: {chosen['predictedStepSeconds']} s a step predicted{measured}"),
        ("other layouts, predicted", ", ".join(others)),
    )


def end(run: RecordedRun) -> Markup:
    """Returns the last checkpoint, restarts, steps that were computed again or have no line, and digests."""
    last = run.steps[-1] if run.steps else None
    facts = [
        ("last checkpoint", _checkpoint(run)),
        *strategy(run),
        ("restarts", _restarts(run.status)),
        ("world generations", ", ".join(sorted({str(s.worldGeneration) for s in run.steps}, key=int))),
        ("steps computed again", str(run.redone) if run.redone else ""),
        ("steps without a line", str(run.missing) if run.missing else ""),
        ("unreadable lines", str(run.unreadable) if run.unreadable else ""),
        (f"stream digest after step {last.step}" if last else "", last.stream_digest if last else ""),
        (f"delivered digest of step {last.step}" if last else "", last.delivered_digest if last else ""),
    ]
    rows = join(tag("tr", tag("th", name), tag("td", value)) for name, value in facts if value)
    return tag("table", rows, class_="facts")


def _checkpoint(run: RecordedRun) -> str:
    saved = run.status.get("lastCheckpoint")
    if isinstance(saved, dict) and saved.get("step") is not None:
        return f"step {saved['step']}, {saved.get('uri', '')}"
    return next((e.message for e in reversed(run.events) if e.reason == "CheckpointSaved"), "none")


def _restarts(status: dict[str, Any]) -> str:
    counts = status.get("restarts")
    return (
        f"{counts.get('counted', 0)} counted, {counts.get('ignored', 0)} not counted"
        if isinstance(counts, dict)
        else ""
    )


def events(run: RecordedRun) -> Markup:
    if not run.events:
        return tag("p", "no events recorded", class_="empty")
    began = min((e.time for e in run.events if e.time), default=0.0)
    return tag("table", join(_event(e, began) for e in run.events), class_="events")


def _event(event: RecordedEvent, began: float) -> Markup:
    mark = tag("b", ("▲ " if event.reason in BAD else "") + event.reason, class_="bad" if event.reason in BAD else None)
    if event.time:
        since = f"+{seconds(event.time - began)}" if event.time > began else "0 s"
        when = tag("td", since, title=f"{_utc(event.time)} UTC")
    else:
        when = tag("td", "time unknown")
    return tag("tr", when, tag("td", mark, " ", event.message, " ", tag("span", event.object, class_="unit")))


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
