"""The status page at `/`: a table that refreshes itself. For the pod itself, or with the job's token."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from coxswain.wire import JobReport
from coxswain_coordinator.state.step_log import short

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="5"><title>{name}: {phase}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; margin-bottom: 2rem; }}
td, th {{ text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top; border-bottom: 1px solid #8884; }}
</style>
<h1>{name}: {phase}</h1>
<table>{facts}</table>
<h2>Trainers, slowest first</h2>
<p>Seconds of a step, means over the latest 20 steps.</p>
<table><tr><th>name<th>node<th>pod<th>slowest rank<th>compute<th>data wait<th>other waits<th>slowdown</tr>{trainers}</table>
<h2>Sources</h2>
<table><tr><th>name<th>weight<th>documents<th>tokens<th>drawn<th>median length<th>longest</tr>{sources}</table>
<h2>Events</h2>
<table>{events}</table>
</html>
"""


def page(name: str, report: JobReport) -> str:
    return _PAGE.format(
        name=escape(name),
        phase=escape(report.phase),
        facts="".join(_row(key, value) for key, value in _facts(report) if value),
        trainers="".join(
            _row(
                t.name,
                t.node,
                t.pod,
                t.rank,
                *map(short, (t.compute_seconds, t.data_wait_seconds, t.wait_seconds)),
                f"{t.slowdown:.1f} x" if t.slowdown else "",
            )
            for t in report.trainers
        ),
        sources="".join(
            _row(s.name, s.weight, s.documents, s.tokens, s.drawn_tokens, s.p50, s.max) for s in report.sources
        ),
        events="".join(_row(_time(e.time), e.reason, e.message) for e in reversed(report.events)),
    )


def _facts(report: JobReport) -> list[tuple[str, str]]:
    has_steps = report.loss is not None  # else the coordinator has closed none, and zeros stand for what is unknown
    return [
        ("Waits for", report.waiting_for),
        ("Fault", f"{report.fault.reason}: {report.fault.message}" if report.fault else ""),
        ("Slow", report.slow),
        ("Step", f"{report.step} of {report.steps}"),
        ("Tokens", f"{report.tokens:,}"),
        ("Loss", "" if report.loss is None else f"{report.loss:.4f}"),
        ("Loss on held-out documents", _evaluation(report)),
        ("Gradient norm", "" if report.gradient_norm is None else f"{report.gradient_norm:.3g}"),
        ("Learning rate", "" if report.learning_rate is None else f"{report.learning_rate:.3g}"),
        ("Model FLOPs utilisation", "" if report.mfu is None else f"{report.mfu:.1%}"),
        ("Tokens per second", f"{report.tokens_per_second:,.0f}" if report.tokens_per_second else ""),
        ("Idle", f"{report.idle_fraction:.1%}" if has_steps else ""),
        ("Remaining", f"{report.eta_seconds} s" if has_steps else ""),
        ("Layout", report.layout_summary),
        ("World generation", str(report.generation)),
        ("Checkpoint", report.checkpoint_uri),
    ]


def _evaluation(report: JobReport) -> str:
    return "" if report.evaluation_loss is None else f"{report.evaluation_loss:.4f} after step {report.evaluation_step}"


def _row(*cells: object) -> str:
    return "<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in cells) + "</tr>"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
