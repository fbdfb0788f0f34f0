"""When Python collects garbage in workers and coordinators."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from coxswain_link import garbage


class Loop:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def left() -> Iterator[None]:
    """The collector as it was."""
    yield
    garbage.collect_at_any_time()


@pytest.mark.usefixtures("left")
def test_within_steps_nothing_is_collected_and_between_them_what_a_step_has_left_is() -> None:
    garbage.collect_between_steps_alone()
    kept = [weakref.ref(Loop()) for _ in range(10_000)]  # Python alone collects after some 700
    assert all(loop() for loop in kept)
    garbage.between_steps(1)
    assert not any(loop() for loop in kept)


@pytest.mark.usefixtures("left")
def test_old_garbage_is_collected_after_every_64th_step() -> None:
    garbage.collect_between_steps_alone()
    loop = Loop()
    for step in (1, 2, 3):  # it becomes old
        garbage.between_steps(step)
    old = weakref.ref(loop)
    del loop
    garbage.between_steps(63)
    assert old() is not None
    garbage.between_steps(64)
    assert old() is None


@pytest.mark.usefixtures("left")
def test_a_worker_that_leaves_its_world_can_free_what_was_there_before_its_first_step() -> None:
    loop = Loop()
    garbage.collect_between_steps_alone()
    model = weakref.ref(loop)
    del loop
    garbage.collect_at_any_time()
    gc.collect()
    assert model() is None and gc.isenabled()


@pytest.mark.usefixtures("left")
def test_no_world_of_a_worker_looks_at_what_its_fork_server_has_left_out_of_collections() -> None:
    loop = Loop()
    garbage.leave_out_what_exists()
    imported, count = weakref.ref(loop), gc.get_freeze_count()
    del loop
    try:
        for _ in "ab":
            garbage.collect_between_steps_alone()
            garbage.between_steps(64)
            garbage.collect_at_any_time()
            gc.collect()
        assert imported() is not None and gc.get_freeze_count() > count // 2
    finally:
        gc.unfreeze()


def test_where_python_collects_at_any_time_a_step_collects_nothing() -> None:
    gc.collect()
    old = weakref.ref(Loop())
    garbage.between_steps(64)
    assert old() is not None


@pytest.mark.usefixtures("left")
def test_a_coordinator_without_steps_collects_now_and_then() -> None:
    garbage.collect_between_steps_alone()
    now = [0.0]
    sweeps, old = garbage.Sweeps(lambda: now[0]), weakref.ref(Loop())
    now[0] = 9.0
    sweeps.after_step(1)
    loop = weakref.ref(Loop())
    now[0] = 18.0
    sweeps.idle()
    assert old() is None and loop() is not None
    now[0] = 19.0
    sweeps.idle()
    assert loop() is None
