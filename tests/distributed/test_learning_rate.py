"""Schedules against those of transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from coxswain.config import OptimizerConfig
from coxswain_train.engine.schedule import learning_rate
from tests.lazy import transformers

PEAK, WARMUP, STEPS, DECAY, FLOOR = 3e-3, 7, 40, 9, 0.2
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
SCHEDULES: dict[str, Schedule] = {
    "Constant": lambda o: transformers.get_constant_schedule_with_warmup(o, WARMUP),
    "Cosine": lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr_rate=FLOOR),
    "Linear": lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, WARMUP, STEPS, lr_end=FLOOR * PEAK),
    "WSD": lambda o: transformers.get_wsd_schedule(
        o, WARMUP, DECAY, num_training_steps=STEPS, decay_type="linear", min_lr_ratio=FLOOR
    ),
}


def rates_of(schedule: Schedule, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler, rates = schedule(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_behind_its_warm_up_is_that_of_transformers_and_stays_where_it_ends(name: str) -> None:
    config = OptimizerConfig(
        learning_rate=PEAK, warmup_steps=WARMUP, schedule=name, minimum_ratio=FLOOR, decay_steps=DECAY
    )
    ours, theirs = [learning_rate(config, k, STEPS) for k in range(STEPS + 5)], rates_of(SCHEDULES[name], STEPS + 1)
    assert ours[WARMUP : STEPS + 1] == pytest.approx(theirs[WARMUP:], rel=1e-12)
    assert ours[:WARMUP] == pytest.approx([PEAK * k / WARMUP for k in range(1, WARMUP + 1)], rel=1e-12)
    assert ours[STEPS:] == pytest.approx([PEAK if name == "Constant" else FLOOR * PEAK] * 5, rel=1e-12)
