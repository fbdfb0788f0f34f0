"""On a GPU an abort ends an exchange as if it were done: what came of it is never held. Ranks are threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain_train.parallel.process_groups import settle
from tests.distributed import training
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.distributed.worlds import Job, numbered
from tests.layouts import layout_of

LAYOUT = numbered(layout_of([(1, 2)], [(1, 2)]))


def reduces_in_vain(world: ThreadWorld, job: Job, generation: int) -> Any:
    """The abort comes while gradients are exchanged."""
    engine = job.engine(world, generation)
    engine.initialise(training.SEED)
    reduce = engine.optimizer.reduce

    def cut_short() -> Tensor:
        world.aborted = True
        return reduce()

    engine.optimizer.reduce = cut_short  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the world was aborted"):
        job.train(engine, LAYOUT, [0])
    return engine.live.all_held(0)


def test_a_gradient_that_an_abort_cut_short_is_not_held_as_reduced() -> None:
    job = Job(training.MODEL, Stream((5, 16, 29), training.VOCABULARY))
    for (held,) in run_threads(2, reduces_in_vain, job, job.form(LAYOUT)):
        assert (held.step, held.pending) == (0, "")


def fills_in_vain(world: ThreadWorld, job: Job, generation: int) -> Any:
    """The abort comes while copies are filled."""
    engine = job.engine(world, generation)
    world.aborted = True
    with pytest.raises(RuntimeError, match="the world was aborted"):
        engine.initialise(training.SEED)
    return engine.live.all_held(0)


def test_a_copy_that_an_abort_cut_short_is_not_held() -> None:
    job = Job(training.MODEL, Stream((5, 16, 29), training.VOCABULARY), copies=True)
    assert run_threads(2, fills_in_vain, job, job.form(LAYOUT)) == [(), ()]


def test_the_device_has_ended_all_that_was_enqueued_before_the_abort_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before that the host does not know how an exchange ends."""
    said = list[str]()
    world = SimpleNamespace(check=lambda: said.append("check"))
    stream = SimpleNamespace(synchronize=lambda: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    settle(world, torch.device("cuda"))  # type: ignore[arg-type]
    assert said == ["synchronize", "check"]
