"""The end of a run: its exit code, and where its files are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coxswain.exits import Exit
from coxswain.names import ANNOTATION_STOP_AT
from coxswain_cli.kept_steps import kept_steps
from coxswain_cli.progress import amount
from coxswain_cli.workdir import all_steps, as_argument, condition
from coxswain_operator.views import retry_requested

Manifest = dict[str, Any]

FAILED = 1
_WIDTH = 120  # columns, for the reason of the end


def has_ended(job: Manifest) -> bool:
    """Whether the job is Completed or Failed, and no retry is requested."""
    return condition(job, "Succeeded").get("status") in ("True", "False") and not retry_requested(job)


def has_failed(job: Manifest) -> bool:
    return condition(job, "Succeeded").get("status") == "False"


def is_suspended(job: Manifest) -> bool:
    return condition(job, "Suspended").get("status") == "True"


def exit_code(job: Manifest) -> int:
    """Returns 0 for Succeeded and for suspended, 1 for Failed."""
    return int(Exit.DONE) if condition(job, "Succeeded").get("status") == "True" or is_suspended(job) else FAILED


def summary(job: Manifest, workdir: Path) -> Iterator[str]:
    """Yields lines of text."""
    end = condition(job, "Succeeded")
    yield f"{job['metadata']['name']}: {end.get('reason', 'Unknown')}"
    for line in end.get("message", "").splitlines():
        yield textwrap.fill(
            line, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    if steps := kept_steps(_Step(s.step, s.tokens, s.loss) for s in all_steps(workdir)):
        begin, last = steps[0], steps[-1]
        first = f"{begin.loss:.4f}{f' at step {begin.step}' if begin.step else ''}"
        yield f"  steps        {last.step + 1}, {amount(_tokens(job, steps))} tokens, loss {first} -> {last.loss:.4f}"
    if checkpoint := job.get("status", {}).get("lastCheckpoint"):
        yield f"  checkpoint   before step {checkpoint['step']}, {checkpoint['uri']}"
    for name in ("steps.jsonl", "events.jsonl", "logs"):
        if (workdir / name).exists():
            yield f"  {name:<12} {workdir / name}"
    yield f"  report       cox report {as_argument(workdir)}"
    if is_suspended(job) or has_failed(job):
        yield f"  to resume    {_to_resume(job)}"


class _Step(NamedTuple):
    """What is kept of each line: those of a week's run do not fit in memory."""

    step: int
    tokens: int
    loss: float


def _tokens(job: Manifest, steps: Sequence[_Step]) -> int:
    """Of the whole run: the lines of its first steps may be gone, or in another work directory."""
    found = sum(step.tokens for step in steps)
    recorded = str((job.get("status", {}).get("progress") or {}).get("tokens", ""))
    return max(found, int(recorded)) if steps[0].step and recorded.isdecimal() else found


def _to_resume(job: Manifest) -> str:
    if has_failed(job):
        return "correct what is wrong, then repeat the command; where nothing needs a change, add --retry"
    stopped = ANNOTATION_STOP_AT in (job["metadata"].get("annotations") or {})
    return "repeat the command without --until-step" if stopped else "repeat the command"
