"""The page's numbers for scripts: `cox report --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import median
from typing import Any

import msgspec

from coxswain.cost.error import error_of
from coxswain_cli.reporting.formatting import ratio
from coxswain_cli.reporting.mix import source_shares
from coxswain_cli.reporting.model import RecordedRun, RecordedStep
from coxswain_cli.reporting.summary import succeeded
from coxswain_cli.reporting.trainers import words


def facts(run: RecordedRun) -> dict[str, Any]:
    """One JSON object. Seconds, tokens and shares of 1; null where nothing is known."""
    how = succeeded(run.status)
    return {
        "job": run.name,
        "state": how.get("reason"),
        "message": how.get("message"),
        "steps": run.steps[-1].step + 1 if run.steps else 0,
        "steps_wanted": run.job.total_steps if run.job else None,
        "steps_computed_again": run.redone,
        "steps_without_a_line": run.missing,
        "unreadable_lines": run.unreadable,
        **_training(run.steps),
        "sources": _sources(run),
        "mixes": msgspec.to_builtins(run.mixes),
        "notes": list(run.notes),
        "checkpoint": run.status.get("lastCheckpoint"),
        "restarts": run.status.get("restarts"),
        "trainers": msgspec.to_builtins(run.trainers),
        "slow": words(run.trainers),
        "events": [{"time": e.time, "reason": e.reason, "message": e.message} for e in run.events],
        "pictured": [{"step": timing.step, "why": why, **msgspec.to_builtins(timing)} for timing, why in run.chosen],
    }


def _training(steps: Sequence[RecordedStep]) -> dict[str, Any]:
    losses = [s.loss for s in steps if s.loss is not None]
    used = [s.mfu for s in steps if s.mfu is not None]
    spent, tokens = sum(s.seconds for s in steps), sum(s.tokens for s in steps)
    return {
        "loss": {"first": losses[0], "last": losses[-1], "best": min(losses)} if losses else None,
        "evaluations": [{"step": s.step, "loss": s.evaluation_loss} for s in steps if s.evaluation_loss is not None],
        "model_flops_utilization": median(used) if used else None,
        "tokens": tokens,
        "tokens_per_second": ratio(tokens, spent),
        "median_step_seconds": median(s.seconds for s in steps) if steps else None,
        "cost_model_error": asdict(error_of((s.planned_seconds, s.seconds) for s in steps)),
        "idle_fraction": ratio(sum(s.idle_fraction * s.seconds for s in steps), spent),
        "world_generations": sorted({s.worldGeneration for s in steps}),
        "stream_digest": steps[-1].stream_digest if steps else None,
        "delivered_digest": steps[-1].delivered_digest if steps else None,
    }


def _sources(run: RecordedRun) -> list[dict[str, Any]]:
    """Each source's share of all tokens, and the one that the weights of the mix ask for."""
    total = list(accumulate(s.tokens for s in run.steps))[-1:] or [0]
    shares = source_shares(run.steps, run.mixes) if total[0] else ()
    return [
        {
            "name": s.name,
            "tokens": s.tokens[-1],
            "share": s.tokens[-1] / total[0],
            "wanted": None if s.wanted is None else s.wanted[-1] / total[0],
        }
        for s in shares
    ]
