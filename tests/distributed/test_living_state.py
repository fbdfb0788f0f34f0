"""State that outlives worlds: the layout changes in running workers, and training goes on as if it had not."""

from __future__ import annotations

import functools

import pytest
import torch
from msgspec.structs import replace

from coxswain.layout import Layout
from tests.distributed import training
from tests.distributed.reference import Stream
from tests.distributed.worlds import Job, numbered, run_through
from tests.layouts import layout_of

STEPS = 6
STREAM = Stream(lengths=(1, 3, 16, 29, 41), vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3, tied_head=True)
WHOLE = [(1, 3)]


def job_of(dtype: torch.dtype = torch.float64, copies: bool = False) -> Job:
    return Job(MODEL, STREAM, dtype, copies=copies)


@functools.cache
def baseline(layout: Layout, dtype: torch.dtype) -> dict[int, float]:
    job = job_of(dtype)
    run_through(job, {0: layout}, STEPS)
    return job.losses


TWO = layout_of(WHOLE, WHOLE)
CHANGES = {
    "another replica": (layout_of(WHOLE), TWO),
    "a layer to the other stage": (layout_of([(1, 1), (1, 3)]), layout_of([(1, 2), (1, 3)])),
    "a tensor group": (layout_of([(1, 3)]), layout_of([(2, 3)])),
    "stages and unequal replicas": (layout_of(WHOLE, [(1, 1), (1, 3)]), layout_of([(2, 1), (1, 3)], WHOLE)),
}


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_training_goes_on_in_another_layout_as_in_the_first(change: tuple[Layout, Layout], copies: bool) -> None:
    before, after = map(numbered, change)
    job = job_of(copies=copies)
    run_through(job, {0: before, 3: after}, STEPS)
    expected = baseline(before, torch.float64)
    assert {step: job.losses[step] for step in range(STEPS)} == pytest.approx(expected, abs=1e-12)
