"""What a rank reports of a step: one that it has computed, and one that broke off behind the vote on it."""

from __future__ import annotations

import time
from math import isfinite

from msgspec import UNSET, UnsetType

from coxswain import wire
from coxswain.config import JobConfig
from coxswain_train.engine.engine import StepResult
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.live.state import LiveState
from coxswain_train.parallel.zero1 import GlobalStats


def step_report(
    plan: wire.StepPlan, rank: int, result: StepResult, delivered: int, seconds: float, waited: float,
    probed: float | UnsetType = UNSET,
) -> wire.StepReport:  # fmt: skip
    """Of a step that took `seconds`, `waited` of them for data. `probed`: seconds of the short probe beside it."""
    return wire.StepReport(
        generation=plan.generation, step=plan.step, rank=rank, loss_sum=result.loss_sum, delivered=delivered,
        gradient_norm=result.gradient_norm, learning_rate=result.learning_rate, seconds=seconds,
        compute_seconds=result.compute_seconds, data_wait_seconds=waited, reduce_seconds=result.reduce_seconds,
        timings=result.timings, ended=time.time() - result.evaluation_seconds,
        evaluation_loss_sum=result.evaluation_loss_sum, evaluation_seconds=result.evaluation_seconds,
        probe_seconds=probed,
        totals=_totals(result.agreed),
    )  # fmt: skip


def agreed_report(
    job: JobConfig, plan: wire.StepPlan, rank: int, delivered: int, live: LiveState
) -> wire.StepReport | None:
    """Of a step that all ranks agreed on and that broke off in its update: the next world finishes it. None: they did not."""
    cut = live.current
    if cut is None:
        return None
    pending, done = cut.pending, live.unreported
    if pending is not None and pending.agreed is not None and pending.step == plan.step:
        loss, agreed = pending.loss_sum, pending.agreed
    elif done is not None and done.step == plan.step and cut.agreed is not None:
        loss, agreed = done.loss_sum, cut.agreed
    else:
        return None
    rate = learning_rate(job.optimizer, plan.step, job.total_steps)
    return wire.StepReport(
        plan.generation, plan.step, rank, loss, delivered, agreed.norm, rate, 0.0, 0.0, 0.0, 0.0,
        ended=time.time(), totals=_totals(agreed),
    )  # fmt: skip


def _totals(agreed: GlobalStats | None) -> wire.Totals | UnsetType:
    """Left out where the loss is no finite number, which JSON has not: a coordinator could not read the report."""
    if agreed is None or not isfinite(agreed.loss_sum):
        return UNSET
    return wire.Totals(agreed.loss_sum, agreed.delivered)
