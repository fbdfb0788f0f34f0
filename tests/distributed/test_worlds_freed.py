"""What a worker keeps of a world that it has left is its `LiveState`, and nothing else: ranks are threads."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain.layout import Layout
from coxswain_train.worker.release import free_world, without_frames
from tests.distributed import training
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.distributed.worlds import Job, numbered
from tests.layouts import layout_of

STREAM = Stream(lengths=(5, 16, 29, 41), vocabulary=training.VOCABULARY)


def fail(_: Tensor) -> None:
    raise RuntimeError("broken off in a backward")


def one_world(world: ThreadWorld, job: Job, generation: int, breaks: bool) -> list[int]:
    """Runs a step, or half of one, and leaves. What is still there of what only this world needed."""
    found = one_step(world, job, generation, breaks)
    free_world()
    return [number for number, ref in enumerate(found) if ref() is not None]


def one_step(world: ThreadWorld, job: Job, generation: int, breaks: bool) -> list[weakref.ref[Any]]:
    """Refers to engine, weights, and the gradients, which hold the world."""
    engine, layout = job.engine(world, generation), job.layouts[generation]
    engine.initialise(training.SEED)
    weights = list(engine.model.weights().values())
    if breaks:
        weights[len(weights) // 2].register_post_accumulate_grad_hook(fail)
        with pytest.raises(RuntimeError, match="broken off"):
            job.train(engine, layout, [0])
    else:
        job.train(engine, layout, [0])
    return [weakref.ref(each) for each in (engine, engine.optimizer.gradients, *weights)]


REPLICAS, MIXED = layout_of([(1, 2)], [(1, 2)]), layout_of([(2, 2)], [(1, 1), (1, 2)])


@pytest.mark.parametrize(("layout", "breaks"), [(REPLICAS, False), (MIXED, False), (REPLICAS, True)])
def test_nothing_of_a_world_is_left_once_its_ranks_have_left_it(layout: Layout, breaks: bool) -> None:
    """Else a process that goes from world to world keeps the weights, sums and communicators of all of them."""
    layout = numbered(layout)
    ranks, job = len(layout.ranks()), Job(training.MODEL, STREAM, torch.bfloat16)
    for _ in range(2):
        assert run_threads(ranks, one_world, job, job.form(layout), breaks) == [[]] * ranks
    assert all(live.current is not None for live in job.workers.values())


def test_an_error_that_is_kept_for_its_words_keeps_nothing_of_what_it_broke() -> None:
    def compute(weight: Tensor) -> None:
        try:
            raise KeyError("the first")
        except KeyError as error:
            raise ValueError("the second") from error

    weight = torch.zeros(3)
    held = weakref.ref(weight)
    try:
        compute(weight)
    except ValueError as error:
        kept, text = error, without_frames(error)
    del weight
    assert held() is None and kept.__cause__ is not None
    assert text.index("the first") < text.index("direct cause") < text.index("the second")
