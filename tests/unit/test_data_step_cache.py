"""Which steps a constructor builds next, keeps and drops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coxswain.errors import Refused, Stale
from coxswain.lru_cache import LRUCache
from coxswain_data.step_cache import StepCache
from coxswain_link.step_buffer import Buffer, StepArrays, pack


def buffers(step: int, replicas: int = 2) -> Mapping[int, Buffer]:
    empty = np.zeros(0, np.int32)
    return {r: pack(StepArrays(1, step, empty, empty, empty, ())) for r in range(replicas)}


def opened(ahead: int = 2, first: int = 10, ready: Callable[[int], None] = lambda _: None) -> StepCache:
    """Ranks 0 and 1 belong to replica 0, rank 2 to replica 1."""
    step_cache = StepCache(ahead, ready)
    step_cache.open(1, first, {0: 0, 1: 0, 2: 1})
    return step_cache


def filled(step_cache: StepCache, *steps: int) -> StepCache:
    for step in steps:
        step_cache.put(1, step, buffers(step))
    return step_cache


def test_building_runs_ahead_and_then_waits_for_the_workers():
    step_cache = opened(ahead=2)
    assert step_cache.next_step(1) == 10
    filled(step_cache, 10)
    assert step_cache.next_step(1) == 11
    filled(step_cache, 11)
    step_cache.provide(1, 10, 0, 0.0)
    assert step_cache.next_step(1) == 12


def test_building_that_is_far_enough_ahead_waits_until_a_worker_takes_a_step():
    step_cache = filled(opened(ahead=1), 10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step_cache.next_step, 1)
        assert not waiting.done()
        step_cache.provide(1, 10, 0, 0.0)
        assert waiting.result(10) == 11


def test_without_a_generation_nothing_is_said_of_steps_ready():
    """A trainer that waits for others to form a world waits for no data."""
    ready = list[int]()
    step_cache = StepCache(2, ready.append)
    assert ready == []
    step_cache.open(1, 10, {0: 0})
    step_cache.close()
    assert ready == [0]


def test_a_new_generation_has_no_step_ready_whatever_the_one_before_had():
    ready = list[int]()
    step_cache = StepCache(2, ready.append)
    step_cache.open(1, 10, {0: 0})
    filled(step_cache, 10, 11)
    assert ready[-1] == 2
    step_cache.open(2, 10, {0: 0})
    assert ready[-1] == 0


def test_ranks_of_one_replica_share_a_buffer():
    step_cache = filled(opened(), 10)
    assert step_cache.provide(1, 10, 0, 0.0) is step_cache.provide(1, 10, 1, 0.0)
    assert step_cache.provide(1, 10, 2, 0.0) is not step_cache.provide(1, 10, 0, 0.0)


def test_a_step_is_dropped_once_all_ranks_have_it_and_one_has_the_next():
    step_cache = filled(opened(), 10, 11)
    for rank in range(3):
        step_cache.provide(1, 10, rank, 0.0)
    assert step_cache.provide(1, 10, 0, 0.0) is not None
    step_cache.provide(1, 11, 0, 0.0)
    assert step_cache.provide(1, 10, 0, 0.0) is None


def test_a_step_that_a_slow_rank_takes_is_not_the_latest_that_any_has():
    ready = list[int]()
    step_cache = StepCache(1, ready.append)
    step_cache.open(1, 10, {0: 0, 1: 1})
    filled(step_cache, 10, 11)
    step_cache.provide(1, 11, 0, 0.0)
    step_cache.provide(1, 10, 1, 0.0)
    assert ready[-1] == 0
    assert step_cache.next_step(1) == 12


def test_a_step_is_kept_while_a_rank_still_needs_it():
    step_cache = filled(opened(), 10, 11)
    step_cache.provide(1, 10, 0, 0.0)
    step_cache.provide(1, 11, 0, 0.0)
    assert step_cache.provide(1, 10, 2, 0.0) is not None


def test_a_step_two_behind_another_ranks_is_dropped_though_a_rank_has_not_taken_it():
    step_cache = filled(opened(), 10, 11, 12)
    for step in (10, 11, 12):
        step_cache.provide(1, step, 0, 0.0)
    assert [step_cache.provide(1, step, 2, 0.0) is None for step in (10, 11, 12)] == [True, False, False]


def test_the_oldest_step_that_a_rank_may_ask_for_is_the_first_that_is_kept_or_the_next_one():
    step_cache = opened(first=10)
    assert step_cache.oldest == 10
    for step in (10, 11):
        filled(step_cache, step)
        for rank in range(3):
            step_cache.provide(1, step, rank, 0.0)
    assert step_cache.oldest == 11


def test_after_a_restart_the_step_that_a_worker_waits_for_is_built_first():
    step_cache = opened(first=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step_cache.provide, 1, 500, 0, 20.0)
        while not step_cache.asked:
            assert not waiting.done()
        assert step_cache.provide(1, 500, 1, 0.0) is None  # another rank gives up
        while (step := step_cache.next_step(1)) != 500:
            filled(step_cache, step)
        filled(step_cache, 500)
        assert waiting.result(10) is not None
    assert step_cache.next_step(1) == 501


@pytest.mark.parametrize(("step", "built"), [(10, 10), (9, 14)])
def test_a_step_that_a_slow_rank_waits_for_comes_first_unless_it_is_closed(step, built):
    step_cache = filled(opened(first=0), 12, 13)
    for closed in (10, 5):
        step_cache.skip_to(1, closed)
    step_cache.provide(1, 12, 0, 0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step_cache.provide, 1, step, 1, 20.0)
        while not step_cache.asked:
            assert not waiting.done()
        assert step_cache.next_step(1) == built
        step_cache.open(2, 0, {})
        with pytest.raises(Stale):
            waiting.result(10)


def test_a_step_that_is_asked_for_in_the_next_generation_is_not_built_in_this_one():
    step_cache = opened()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step_cache.provide, 2, 11, 0, 20.0)
        while not step_cache.asked:
            assert not waiting.done()
        assert step_cache.next_step(1) == 10
        step_cache.open(3, 0, {})
        with pytest.raises(Stale):
            waiting.result(10)


def test_steps_that_no_rank_has_are_reported_as_ready():
    reported: list[int] = []
    step_cache = StepCache(2, reported.append)
    step_cache.open(1, 10, {0: 0})
    reported.clear()
    filled(step_cache, 10, 11)
    step_cache.provide(1, 10, 0, 0.0)
    assert reported == [1, 2, 1]


def test_nothing_is_built_before_a_generation_begins_and_after_the_last_one():
    step_cache = StepCache(2)
    assert step_cache.next_step(1) is None
    step_cache.open(1, 0, {0: 0})
    assert step_cache.is_open(1)
    step_cache.close()
    assert (step_cache.next_step(1), step_cache.is_open(1)) == (None, False)


def test_a_late_step_is_kept_for_the_rank_that_waits_for_it_although_others_go_on():
    later = list[int]()

    def go_on(_: int) -> None:
        while later:  # the step is there, and its rank has not woken
            assert filled(step_cache, later.pop()).provide(1, 14, 0, 0.0) is not None

    step_cache = opened(ready=go_on)
    filled(step_cache, 13).provide(1, 13, 0, 0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step_cache.provide, 1, 10, 2, 5.0)
        while not step_cache.asked:
            assert not waiting.done()
        later.append(14)
        filled(step_cache, 10)
        assert waiting.result(10) is not None
    assert not later


def test_steps_that_are_closed_are_skipped():
    step_cache = opened(first=0)
    for closed in (500, 400):
        step_cache.skip_to(1, closed)
    assert step_cache.next_step(1) == 500


def test_a_new_generation_drops_the_buffers_of_the_one_before():
    step_cache = filled(opened(), 10)
    step_cache.open(2, 5, {0: 0})
    assert step_cache.next_step(1) is None
    assert step_cache.next_step(2) == 5
    with pytest.raises(Stale, match="the current one is 2"):
        step_cache.provide(1, 10, 0, 0.0)


def test_a_buffer_built_for_an_older_generation_never_reaches_the_new_one():
    step_cache = opened()
    step_cache.open(2, 10, {0: 0})
    filled(step_cache, 10)
    assert step_cache.provide(2, 10, 0, 0.0) is None


def test_a_builder_that_outlives_its_generation_neither_fails_nor_moves_the_next_one():
    step_cache = opened()
    step_cache.open(2, 10, {0: 0})
    step_cache.fail(1, Refused("SourceChanged", "a.txt changed"))
    step_cache.skip_to(1, 500)
    assert step_cache.next_step(2) == 10
    assert step_cache.provide(2, 10, 0, 0.0) is None


def test_a_worker_of_the_next_generation_gets_neither_steps_nor_failures_of_this_one():
    step_cache = filled(opened(), 10)
    step_cache.fail(1, Refused("SourceChanged", "a.txt changed"))
    assert [step_cache.provide(2, step, 0, 0.0) for step in (10, 11)] == [None, None]


def test_a_new_generation_begins_without_the_failure_of_the_one_before():
    step_cache = opened()
    step_cache.fail(1, Refused("SourceChanged", "a.txt changed"))
    step_cache.open(2, 10, {0: 0})
    assert step_cache.next_step(2) == 10
    assert step_cache.provide(2, 10, 0, 0.0) is None


def test_a_worker_may_be_in_the_new_generation_before_its_constructor():
    step_cache = opened()
    got = threading.Event()

    def provide() -> Buffer | None:
        got.set()
        return step_cache.provide(2, 10, 0, 20.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(provide)
        got.wait(10)
        step_cache.open(2, 10, {0: 0})
        step_cache.put(2, 10, buffers(10))
        assert waiting.result(10) is not None


def test_a_failure_reaches_waiting_ranks_and_spares_steps_that_are_built():
    step_cache = filled(opened(), 10)
    step_cache.fail(1, Refused("SourceChanged", "a.txt changed"))
    assert step_cache.provide(1, 10, 0, 0.0) is not None
    with pytest.raises(Refused, match=r"a\.txt"):
        step_cache.provide(1, 11, 0, 10.0)
    assert step_cache.next_step(1) is None


def test_a_rank_of_another_pod_is_refused_with_the_ranks_of_this_one():
    with pytest.raises(Refused, match=r"\[0, 1, 2\]"):
        filled(opened(), 10).provide(1, 10, 9, 0.0)


def test_a_cache_keeps_what_was_used_last_within_its_budget():
    cache: LRUCache[str, bytes] = LRUCache(10, len)
    made: list[str] = []

    def get(key: str, size: int) -> bytes:
        return cache.get(key, lambda: made.append(key) or bytes(size))  # type: ignore[func-returns-value]

    get("a", 4), get("b", 4), get("a", 4), get("c", 4), get("a", 4), get("b", 4)
    assert made == ["a", "b", "c", "b"]
    assert cache.used <= 10


def test_an_entry_larger_than_the_budget_is_kept_until_the_next():
    cache: LRUCache[str, bytes] = LRUCache(10, len)
    assert len(cache.get("big", lambda: bytes(50))) == 50
    cache.get("small", lambda: bytes(1))
    assert cache.used == 1
