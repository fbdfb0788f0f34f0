"""Messages reach the coordinator across its restarts; plans are available without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coxswain.errors import Retryable, Stale
from coxswain.wire import Ack, Heartbeat, StepPlan, StepPlans
from coxswain_link import outbox
from coxswain_link.http_client import Client, Closed
from coxswain_link.outbox import Message, MessageLog, Outbox
from coxswain_link.plan_feed import PlanFeed


class Scripted:
    """A client of a scripted coordinator: its name, what it has saved, and whether it is away."""

    def __init__(self) -> None:
        self.coordinator, self.saved, self.away = "one", 0, False
        self.heartbeat_seconds, self.end = 0.0, None
        self.fault: Exception | None = None
        self.got: list[tuple[str, Any]] = []
        self.plans: list[StepPlan] = []
        self.beats = threading.Event()
        self.beaten: list[Heartbeat] = []
        self.generations: set[int | None] = set()  # that its calls name

    def post(self, path: str, body: Any, _: type, generation: int | None = None, **__: Any) -> Ack:
        self.generations.add(generation)
        self._answer()
        if path == "/v1/beats":
            self.beats.set()
            self.beaten.append(body)
        else:
            self.got.append((self.coordinator, msgspec.json.decode(body)))
        return Ack(self.coordinator, self.saved, self.heartbeat_seconds, self.end)

    def get(self, _: str, __: type, **query: Any) -> StepPlans | None:
        self._answer()
        found = tuple(p for p in self.plans if p.step >= query["from"])[:2]
        if not found:
            time.sleep(0.01)  # a long poll
        return StepPlans(found) if found else None

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault
        if self.away:
            time.sleep(0.01)  # the time of an attempt
            raise Retryable("connection refused")


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def plan(step: int) -> StepPlan:
    return StepPlan(1, step, (), (), (), 1, "", 0.0, 1.0)


@pytest.fixture
def client() -> Scripted:
    return Scripted()


@pytest.fixture
def box(client: Scripted):
    box = Outbox(client, Heartbeat(1), pause=0.05)
    yield box
    box.close()


def test_messages_arrive_in_order_after_the_coordinator_was_unreachable(client, box):
    client.away = True
    for step in range(3):
        box.put("/v1/reports", step, step)
    until(lambda: not box.reachable)
    client.away = False
    box.flush(20)
    assert client.got == [("one", 0), ("one", 1), ("one", 2)]
    assert box.reachable


def test_a_new_coordinator_gets_every_message_that_no_checkpoint_covers(client, box):
    client.saved = 2
    for step in range(4):
        box.put("/v1/reports", step, step)
    box.flush(20)
    client.coordinator = "two"
    until(lambda: [body for receiver, body in client.got if receiver == "two"] == [2, 3])


def test_an_outbox_without_messages_sends_heartbeats(client, box):
    assert client.beats.wait(20)


def test_heartbeats_and_messages_name_the_generation_of_their_world(client):
    box = Outbox(client, Heartbeat(7), pause=0.05)
    box.put("/v1/reports", 0, 0)
    box.flush(20)
    assert client.beats.wait(20)
    box.close()
    assert client.generations == {7}


def test_the_outbox_fails_when_the_coordinator_stays_unreachable(client):
    client.away = True
    box = Outbox(client, Heartbeat(1), patience=0.5, pause=0.05)
    box.put("/v1/reports", 0, 0)
    with pytest.raises(Retryable, match="connection refused"):
        box.flush(20)


def test_the_patience_with_a_coordinator_begins_at_its_last_answer(client, monkeypatch):
    """Else one lost message of a run that has lasted longer would end its world."""
    seconds = [0.0]
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    box = Outbox(client, Heartbeat(1), patience=60, pause=0.05)
    for now, step in ((0.0, 0), (1000.0, 1)):
        seconds[0] = now
        box.put("/v1/reports", step, step)
        box.flush(20)
    client.away = True
    until(lambda: not box.reachable)
    client.away = False
    box.put("/v1/reports", 2, 2)
    box.flush(20)
    box.close()


def test_flush_waits_until_a_checkpoint_covers_the_steps(client, box):
    box.put("/v1/saved", 6, "all")
    with pytest.raises(Retryable, match="0 messages are not sent, 0 of 6 steps are saved"):
        box.flush(0.3, saved=6)
    client.saved = 6
    box.flush(20, saved=6)


def send(log: MessageLog, steps: range, coordinator: str, saved: int = 0) -> None:
    for step in steps:
        log.put(Message("/v1/reports", step, step))
        log.acknowledge(log.next(), Ack(coordinator, saved))


def test_the_oldest_sent_messages_are_dropped_and_a_coordinator_that_needs_them_is_refused():
    log = MessageLog(most=4)
    send(log, range(10), "one")
    with pytest.raises(
        Retryable, match=r"needs messages of step 5 and before, which were dropped; the world begins again"
    ):
        log.acknowledge(None, Ack("two", 0))


def test_messages_that_wait_keep_their_turn_behind_sent_ones_that_a_checkpoint_does_not_cover():
    log = MessageLog()
    for step in (1, 5, 6, 7):
        log.put(Message("/v1/reports", step, step))
    log.acknowledge(log.next(), None)
    log.acknowledge(log.next(), Ack("one", 3))
    waiting = []
    while (message := log.next()) is not None:
        waiting.append(message.step)
        log.acknowledge(message, None)
    assert waiting == [6, 7]


def test_large_sent_messages_are_dropped_by_their_bytes_however_few_they_are():
    log = MessageLog(most_bytes=100)
    for step in range(10):
        log.put(Message("/v1/served", step, step, size=30))
        log.acknowledge(log.next(), Ack("one", 0))
    with pytest.raises(Retryable, match="step 6 and before"):
        log.acknowledge(None, Ack("two", 0))


def send_large(log: MessageLog, steps: range, received: Ack) -> None:
    for step in steps:
        log.put(Message("/v1/served", step, step, size=30))
        log.acknowledge(log.next(), received)


def test_messages_that_are_sent_again_to_a_new_coordinator_count_once():
    log = MessageLog(most_bytes=100)
    send_large(log, range(3), Ack("one", 0))
    log.acknowledge(None, Ack("two", 0))
    while log.waiting:
        log.acknowledge(log.next(), Ack("two", 0))
    log.acknowledge(None, Ack("three", 0))
    assert (log.waiting, log.next().step) == (3, 0)


def test_large_messages_that_a_checkpoint_does_not_cover_count_on():
    log = MessageLog(most_bytes=100)
    send_large(log, range(3), Ack("one", 0))
    log.acknowledge(None, Ack("one", 1))
    send_large(log, range(3, 5), Ack("one", 1))
    with pytest.raises(Retryable, match="step 1 and before"):
        log.acknowledge(None, Ack("two", 1))


@pytest.mark.parametrize(("letters", "kept"), [(998, True), (999, False)])
def test_the_size_of_a_message_is_that_of_what_is_sent_and_kept(client, letters, kept):
    """It is sent with two quotes, and a thousand bytes may be kept."""
    box = Outbox(client, Heartbeat(1), pause=0.05, messages=MessageLog(most_bytes=1000))
    box.put("/v1/served", 0, "x" * letters)
    box.flush(20)
    client.coordinator = "two"
    with nullcontext() if kept else pytest.raises(Retryable, match="of step 0 and before, which were dropped"):
        until(lambda: box.check() or len(client.got) == 2)
    box.close()


@pytest.mark.parametrize("saved", [0, 4, 5])
def test_another_coordinator_that_lacks_a_dropped_step_is_refused_up_to_the_last_such_step(saved):
    log = MessageLog(most=4)
    send(log, range(10), "one")  # steps 0 to 5 are dropped
    with pytest.raises(Retryable, match="step 5 and before"):
        log.acknowledge(None, Ack("two", saved))


def test_another_coordinator_that_knows_an_older_checkpoint_is_refused_once_messages_behind_it_are_dropped():
    """It would wait for them for ever."""
    log = MessageLog()
    send(log, range(10), "one")
    log.acknowledge(None, Ack("one", 8))
    with pytest.raises(Retryable, match="step 7 and before"):
        log.acknowledge(None, Ack("two", 4))


def test_the_same_coordinator_needs_nothing_again_and_its_own_message_is_not_sent_twice():
    log = MessageLog(most=4)
    send(log, range(10), "one")
    log.acknowledge(None, Ack("one", 0))
    assert log.waiting == 0


def test_a_message_that_was_not_sent_stays_although_its_step_is_in_a_checkpoint():
    log = MessageLog(most=4)
    log.put(Message("/v1/reports", 3, 3))
    log.acknowledge(None, Ack("one", 6))
    assert log.next() == Message("/v1/reports", 3, 3)


def test_dropped_messages_that_a_checkpoint_covers_are_not_missed():
    log = MessageLog(most=4)
    send(log, range(10), "one")
    log.acknowledge(None, Ack("two", 6))
    assert (log.waiting, log.next()) == (4, Message("/v1/reports", 6, 6))


def test_unsent_messages_are_kept_beyond_the_limit():
    log = MessageLog(most=4)
    for step in range(10):
        log.put(Message("/v1/reports", step, step))
    log.acknowledge(None, Ack("one", 0))
    assert log.waiting == 10


class Watched:
    """A message that counts how often its step is looked at."""

    path, body, size, looks = "/v1/reports", 0, 1, 0

    def __init__(self, step: int) -> None:
        self._step = step

    @property
    def step(self) -> int:
        Watched.looks += 1
        return self._step


def test_a_message_costs_the_same_however_many_no_checkpoint_covers(monkeypatch):
    """A rank sends one a step, beside the computation: it held the interpreter for milliseconds."""
    monkeypatch.setattr(Watched, "looks", 0)
    log = MessageLog(most=400)
    for step in range(1000):
        log.put(Watched(step))
        log.acknowledge(log.next(), Ack("one", saved=0 if step < 900 else 900))
    log.acknowledge(None, Ack("two", saved=900))
    assert (log.waiting, Watched.looks <= 3 * 1000) == (100, True)


def test_a_call_of_a_closed_client_raises_closed():
    with Client("http://127.0.0.1:9", "token") as client:
        pass
    with pytest.raises(Closed, match="this client is closed"):
        client.get("/v1/plans", StepPlans)


def test_the_outbox_of_an_older_world_raises_stale(client, box):
    client.fault = Stale("generation 1 is over")
    box.put("/v1/reports", 0, 0)
    with pytest.raises(Stale):
        box.flush(20)
    with pytest.raises(Stale):
        box.check()


def test_fetched_plans_stay_available_without_a_coordinator(client):
    client.plans = [plan(step) for step in range(5)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(4, 20).step == 4
    client.away = True
    assert [feed.get(step, 0).step for step in range(5)] == [0, 1, 2, 3, 4]
    assert feed.get(5, 0.05) is None
    feed.forget_before(3)
    assert feed.get(0, 0).step == 3
    feed.close()


@pytest.mark.timeout(20)
def test_a_feed_says_at_once_that_its_world_is_over_and_keeps_what_it_has(client):
    client.plans = [plan(0)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(0, 60).step == 0
    over = threading.Event()

    def refuse(*_: Any, **__: Any) -> None:
        over.wait(20)
        raise Stale("generation 1 is over")

    client.get = refuse
    threading.Timer(0.3, over.set).start()  # while the caller waits
    with pytest.raises(Stale):
        feed.get(1, 60)
    assert feed.get(0, 0).step == 0


@pytest.mark.timeout(20)
def test_a_closed_feed_waits_no_longer(client):
    feed = PlanFeed(client, 1, 0)
    threading.Timer(0.1, feed.close).start()
    assert feed.get(0, 60) is None


def test_no_thread_of_the_link_holds_up_the_end_of_its_process(client, box):
    feed = PlanFeed(client, 1, 0)
    assert {t.name: t.daemon for t in threading.enumerate() if t.name in ("plans", "outbox")} == {
        "plans": True,
        "outbox": True,
    }
    feed.close()


def test_plans_of_another_generation_are_not_taken(client):
    client.plans = [msgspec.structs.replace(plan(0), generation=2), plan(1)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(0, 20).step == 1
    assert feed.peek(0) is None
    feed.close()


def test_the_plans_of_closed_steps_are_skipped(client):
    client.plans = [plan(7)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(0, 20).step == 7
    feed.close()


def test_heartbeats_are_as_rare_as_the_coordinator_wishes_until_it_is_missed(client, box):
    client.heartbeat_seconds, client.end = 1000.0, 9
    box.put("/v1/reports", 0, 0)
    until(lambda: box.end == 9)
    before = len(client.beaten)
    box.mark_unreachable()  # another caller got no answer
    until(lambda: len(client.beaten) > before)
    until(lambda: box.reachable)


def test_a_flush_does_not_wait_for_a_rare_heartbeat(client, box):
    client.heartbeat_seconds, client.end = 1000.0, 9
    box.put("/v1/saved", 6, "all")
    until(lambda: box.end == 9)
    client.saved = 6
    box.flush(20, saved=6)


def test_a_flush_that_waits_for_long_asks_more_and_more_rarely(client, box):
    """A thousand ranks wait for one manifest, and the coordinator that writes it answers them all."""
    client.heartbeat_seconds, client.end = 1000.0, 9
    box.put("/v1/reports", 0, 0)
    until(lambda: box.end == 9)
    before = len(client.beaten)
    assert not box.has_sent(1.0, saved=6)
    assert 1 <= len(client.beaten) - before <= 5


def test_messages_make_a_flush_ask_no_more_rarely(client, box):
    """Twelve of them would make it wait for minutes."""
    client.heartbeat_seconds = 1000.0
    assert not box.has_sent(0.0, saved=6)
    for step in range(12):
        box.put("/v1/reports", step, step)
    assert box.has_sent(20)
    client.saved = 6
    box.flush(20, saved=6)


def test_an_announced_end_is_known_until_a_coordinator_says_otherwise(client, box):
    client.end = 7
    until(lambda: box.end == 7)
    client.coordinator, client.end = "two", None
    until(lambda: box.end is None)


def test_a_heartbeat_says_how_far_the_start_of_a_rank_is(client, box):
    box.advance()
    box.advance()
    until(lambda: client.beaten and client.beaten[-1] == Heartbeat(1, progress=2))


def test_a_heartbeat_says_which_step_a_rank_has_begun(client, box):
    box.begin(7)
    until(lambda: client.beaten and client.beaten[-1] == Heartbeat(1, begun=7))


def test_a_save_that_gets_on_while_a_step_begins_hides_neither_from_the_heartbeats(client):
    """The saver's thread and the worker's change one heartbeat."""

    class Slow(int):
        def __add__(self, more: int) -> int:
            stepping.start()
            stepping.join(0.2)  # it has to wait for this thread
            return int(self) + more

    changed = Outbox(client, Heartbeat(1, progress=Slow(3)), pause=0.05)
    stepping = threading.Thread(target=lambda: changed.begin(7))
    changed.advance()
    stepping.join()
    until(lambda: client.beaten and client.beaten[-1] == Heartbeat(1, progress=4, begun=7))
    changed.close()


def test_a_caller_waits_for_an_answer_and_no_longer_than_it_says(client, box):
    client.away = True
    until(lambda: not box.reachable)
    box.await_answer(0.05)
    assert not box.reachable
    client.away = False
    box.await_answer(20)
    assert box.reachable


def close(client: Scripted, box: Outbox) -> None:
    box.close()


def refuse(client: Scripted, box: Outbox) -> None:
    client.fault = Stale("generation 1 is over")


@pytest.mark.parametrize("end", [close, refuse])
def test_a_caller_that_waits_for_an_answer_waits_no_longer_once_the_outbox_has_ended(client, box, end):
    client.away = True
    until(lambda: not box.reachable)
    waiting = threading.Thread(target=box.await_answer, args=(1000,), daemon=True)
    waiting.start()
    end(client, box)
    waiting.join(20)
    assert not waiting.is_alive()


def test_an_error_that_nothing_expects_ends_the_outbox_with_its_words(client, box):
    client.fault = RuntimeError("can't start new thread")
    box.put("/v1/reports", 0, 0)
    with pytest.raises(Retryable, match="the thread that sends messages failed: RuntimeError: can't start new thread"):
        box.flush(20)
    with pytest.raises(Retryable, match="can't start new thread"):
        box.check()


def test_an_error_that_nothing_expects_ends_a_feed_with_its_words(client):
    client.fault = RuntimeError("can't start new thread")
    feed = PlanFeed(client, 1, 0)
    with pytest.raises(Retryable, match="the thread that fetches plans failed: RuntimeError: can't start new thread"):
        feed.get(0, 20)


def test_a_feed_whose_first_plans_are_of_closed_steps_asks_on_behind_the_last_one(client, monkeypatch):
    """One that counted the plans would pass over those that come next, and its worker would wait for them for ever."""
    asked, get = list[int](), client.get
    monkeypatch.setattr(client, "get", lambda *a, **query: (asked.append(query["from"]), get(*a, **query))[1])
    client.plans = [plan(5), plan(6)]
    feed = PlanFeed(client, 1, 0)
    until(lambda: len(asked) > 5)
    feed.close()
    assert asked[0] == 0
    assert set(asked[1:]) == {7}
