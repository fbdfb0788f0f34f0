"""The queue of jobs in virtual time: which key is processed when, and never twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coxswain.errors import Retryable
from coxswain_operator import workqueue
from coxswain_operator.cluster import Conflict
from coxswain_operator.workqueue import COALESCE_SECONDS, MAX_CONCURRENT, Key, RequeueDelay, WorkQueue

pytestmark = pytest.mark.looptime(start=1000)

KEY, REST = ("lab", "demo"), RequeueDelay(0.0, 3600.0)
Answer = RequeueDelay | Exception | None


def now() -> float:
    return asyncio.get_running_loop().time() - 1000


class Passes:
    """Each call takes `seconds` and answers the next of `answers`; the last one is repeated."""

    def __init__(self, *answers: Answer, seconds: float = 0.0) -> None:
        self._answers, self._seconds = list(answers), seconds
        self.begun: list[float] = []
        self.under_way = self.most = 0
        self.at_begin: Callable[[], None] = lambda: None

    async def __call__(self, key: Key) -> RequeueDelay | None:
        self.begun.append(round(now(), 3))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.at_begin()
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.under_way -= 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_keys_that_are_added_together_are_one_call_and_one_added_during_it_is_another() -> None:
    passes = Passes(REST, seconds=5.0)
    async with WorkQueue(passes) as queue:
        for _ in range(3):
            queue.add(KEY)
        await asyncio.sleep(1.0)
        queue.add(KEY)
        await asyncio.sleep(60.0)
    assert passes.begun == [COALESCE_SECONDS, 2 * COALESCE_SECONDS + 5.0]
    assert passes.most == 1


async def test_a_key_that_is_added_again_while_its_call_is_put_off_is_called_once() -> None:
    passes = Passes(REST)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(COALESCE_SECONDS / 2)
        queue.add(KEY)
        await asyncio.sleep(60.0)
    assert passes.begun == [COALESCE_SECONDS]


@pytest.mark.parametrize(("added", "begun"), [(1.0, 10.1), (20.0, 20.1), (None, 30.1)])
async def test_a_key_rests_for_least_though_it_is_added_and_for_most_though_it_is_not(
    added: float | None, begun: float
) -> None:
    passes = Passes(RequeueDelay(10.0, 30.0), REST)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        if added is not None:
            await asyncio.sleep(COALESCE_SECONDS + added)
            queue.add(KEY)
        await asyncio.sleep(60.0)
    assert passes.begun == [COALESCE_SECONDS, begun]


@pytest.mark.parametrize(("least", "keys", "spaced"), [(0.1, 1, 0.15), (0.1, 4, 0.45), (0.1, 20, 0.55), (2.0, 4, 2.05)])
async def test_keys_share_what_one_may_cost_but_none_rests_much_longer_for_the_others(
    least: float, keys: int, spaced: float
) -> None:
    """All of them are added again after their first call."""
    passes = Passes(RequeueDelay(least, 60.0))
    async with WorkQueue(passes) as queue:
        names = [("lab", str(n)) for n in range(keys)]
        for name in names:
            queue.add(name)
        await asyncio.sleep(COALESCE_SECONDS + 0.01)
        for name in names:
            queue.add(name)
        await asyncio.sleep(10.0)
    assert sorted(passes.begun) == pytest.approx(
        [COALESCE_SECONDS] * keys + [COALESCE_SECONDS + spaced] * keys, abs=0.01
    )


async def test_a_key_rests_no_longer_for_keys_that_have_not_been_added() -> None:
    passes = Passes(RequeueDelay(0.1, 60.0))
    async with WorkQueue(passes) as queue:
        for number in range(20):
            queue.add(("lab", str(number)))
        await asyncio.sleep(COALESCE_SECONDS + 0.01)
        queue.add(("lab", "7"))
        await asyncio.sleep(10.0)
    assert passes.begun[20:] == pytest.approx([2 * COALESCE_SECONDS + 0.1])


@pytest.mark.parametrize("again", [False, True])
async def test_a_key_that_is_gone_is_forgotten_unless_it_is_added_during_its_last_call(again: bool) -> None:
    passes = Passes(None)
    async with WorkQueue(passes) as queue:
        passes.at_begin = lambda: queue.add(KEY) if again and len(passes.begun) == 1 else None
        queue.add(KEY)
        await asyncio.sleep(60.0)
        assert (len(passes.begun), queue.keys) == (1 + again, [])
        queue.add(KEY)
        assert queue.keys == [KEY]
        await asyncio.sleep(60.0)
    assert len(passes.begun) == 2 + again


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        ([OSError("a"), OSError("b"), OSError("c"), REST], [1.0, 2.0, 4.0]),
        ([OSError("a")] * 8 + [REST], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        ([OSError("a"), OSError("b"), RequeueDelay(3.0, 3.0), OSError("c"), REST], [1.0, 2.0, 3.0, 1.0]),
        ([Conflict("moved on"), OSError("a"), REST], [0.05, 2.0]),
        ([Conflict("moved on")] * 12 + [REST], [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0]),
    ],
)
async def test_the_pause_after_an_error_doubles_up_to_a_minute_and_additions_do_not_shorten_it(
    monkeypatch: pytest.MonkeyPatch, answers: list[Answer], pauses: list[float], added: bool
) -> None:
    monkeypatch.setattr(workqueue.random, "uniform", lambda least, most: most)
    passes = Passes(*answers)
    async with WorkQueue(passes) as queue:
        passes.at_begin = lambda: queue.add(KEY) if added and len(passes.begun) < len(answers) else None
        queue.add(KEY)
        await asyncio.sleep(1000.0)
    found = [b - a for a, b in zip(passes.begun, passes.begun[1:], strict=False)]
    assert found == pytest.approx([pause + COALESCE_SECONDS for pause in pauses], abs=1e-3)


async def test_a_key_that_fails_for_a_day_is_still_called() -> None:
    """A float has no power of two beyond 1,023."""
    passes = Passes(OSError("the server is away"))
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(20 * 3600.0)
        called = len(passes.begun)
        await asyncio.sleep(120.0)
        assert called > 1200 and len(passes.begun) >= called + 1


async def test_a_key_rests_for_least_also_where_the_next_call_is_due_at_once() -> None:
    passes = Passes(RequeueDelay(10.0, 0.0), REST)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(60.0)
    assert passes.begun == pytest.approx([COALESCE_SECONDS, 2 * COALESCE_SECONDS + 10.0])


async def test_a_key_whose_call_fails_by_an_error_of_any_kind_is_called_again() -> None:
    passes = Passes(KeyError("spec"), REST)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(60.0)
    assert len(passes.begun) == 2


async def test_pauses_of_many_jobs_differ_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    monkeypatch.setattr(workqueue.random, "uniform", lambda *bounds: drawn.append(bounds) or 1.0)
    async with WorkQueue(Passes(OSError("a"), REST)) as queue:
        queue.add(KEY)
        await asyncio.sleep(10.0)
    assert drawn == [(0.5, 1.0)]


async def test_at_most_sixteen_keys_are_in_process_and_the_oldest_of_the_others_is_known() -> None:
    passes = Passes(REST, seconds=5.0)
    async with WorkQueue(passes) as queue:
        keys = [("lab", f"demo-{number}") for number in range(MAX_CONCURRENT + 1)]
        for key in keys:
            queue.add(key)
        assert queue.oldest(1003.0) == pytest.approx(3.0)
        await asyncio.sleep(2.0)
        for key in keys:
            queue.add(key)  # the one that waits has done so since it was first added
        assert passes.under_way == 16
        assert queue.oldest(1000 + now()) == pytest.approx(2.0)
        await asyncio.sleep(60.0)
        assert (passes.most, queue.oldest(1000 + now())) == (16, 0.0)
    assert passes.under_way == 0


async def test_a_key_waits_from_its_addition_until_its_call_begins_also_when_it_is_added_during_one() -> None:
    async with WorkQueue(Passes(REST, seconds=5.0)) as queue:
        queue.add(KEY)
        await asyncio.sleep(2.0)
        assert queue.oldest(1000 + now()) == 0.0
        queue.add(KEY)
        await asyncio.sleep(3.0)
        assert queue.oldest(1000 + now()) == pytest.approx(3.0)
        await asyncio.sleep(1.0)
        assert queue.oldest(1000 + now()) == 0.0


async def test_a_queue_that_is_left_has_ended_its_calls() -> None:
    passes = Passes(REST, seconds=3600.0)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(1.0)
        assert passes.under_way == 1
    assert (passes.under_way, now(), len(asyncio.all_tasks())) == (0, 1.0, 1)


async def test_a_queue_that_is_left_calls_nothing_for_keys_that_are_added_later() -> None:
    """Another operator may lead by then."""
    passes = Passes(None)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(1.0)
    for key in (KEY, ("lab", "other")):
        queue.add(key)
    await asyncio.sleep(60.0)
    assert (len(passes.begun), queue.keys) == (1, [])


async def test_a_queue_stalls_when_keys_wait_and_no_call_ends_and_not_before() -> None:
    """A failing server ends calls late and with errors: another operator would fare no better."""
    begun, goes_on, one_ends = list[Key](), asyncio.Event(), asyncio.Event()

    async def process(key: Key) -> RequeueDelay | None:
        begun.append(key)
        await (one_ends if key == begun[0] else goes_on).wait()
        raise OSError("the server is slow")

    async with WorkQueue(process) as queue:
        assert queue.stalled(2000.0) == 0.0  # nothing waits
        for number in range(MAX_CONCURRENT + 2):
            queue.add(("lab", f"job-{number}"))
        await asyncio.sleep(10.0)
        assert (len(begun), queue.stalled(2000.0)) == (MAX_CONCURRENT, pytest.approx(1000.0))
        one_ends.set()
        await asyncio.sleep(10.0)
        assert len(begun) == MAX_CONCURRENT + 1
        assert (queue.oldest(2000.0), queue.stalled(2000.0)) == (pytest.approx(1000.0), pytest.approx(990.0))
        goes_on.set()


@pytest.mark.parametrize(("after", "begun"), [(40.0, (40.5, 41.1)), (0.0, (0.5, 1.1))])
async def test_a_key_rests_for_as_long_as_a_server_asks_though_it_is_added(
    after: float, begun: tuple[float, float]
) -> None:
    passes = Passes(Retryable("429", after=after), REST)
    async with WorkQueue(passes) as queue:
        queue.add(KEY)
        await asyncio.sleep(0.2)
        queue.add(KEY)
        await asyncio.sleep(60.0)
    least, most = begun
    assert least <= passes.begun[1] - passes.begun[0] <= most + COALESCE_SECONDS
