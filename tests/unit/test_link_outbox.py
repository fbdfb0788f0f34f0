"""What members of a world tell their coordinator arrives, whoever that is by then; and plans are at hand without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from coxswain.errors import Retryable, Stale
from coxswain.wire import Ack, Heartbeat, StepPlan, StepPlans
from coxswain_link import outbox
from coxswain_link.http_client import Client, Closed
from coxswain_link.outbox import Message, MessageLog, Outbox
from coxswain_link.plan_feed import PlanFeed


class Scripted:
    """A client whose coordinator is scripted: who it is, what it has saved, and whether it is away."""

    def __init__(self) -> None:
        self.coordinator, self.saved, self.away = "one", 0, False
        self.fault: Exception | None = None
        self.got: list[tuple[str, Any]] = []
        self.plans: list[StepPlan] = []
        self.beats = threading.Event()

    def post(self, path: str, body: Any, _: type, **__: Any) -> Ack:
        self._answer()
        if path == "/v1/beats":
            self.beats.set()
        else:
            self.got.append((self.coordinator, body))
        return Ack(self.coordinator, self.saved)

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
            raise Retryable("nobody there")


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
def box(client: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox, "_HEARTBEAT_SECONDS", 0.05)
    box = Outbox(client, Heartbeat(1), patience=0.5)
    yield box
    box.close()


def test_messages_arrive_in_order_although_the_coordinator_is_away_for_a_while(client, box):
    client.away = True
    for step in range(3):
        box.put("/v1/reports", step, step)
    until(lambda: not box.reachable)
    client.away = False
    box.flush(20)
    assert client.got == [("one", 0), ("one", 1), ("one", 2)]
    assert box.reachable


def test_another_coordinator_gets_all_that_no_checkpoint_holds_without_being_asked(client, box):
    client.saved = 2
    for step in range(4):
        box.put("/v1/reports", step, step)
    box.flush(20)
    client.coordinator = "two"
    until(lambda: [body for who, body in client.got if who == "two"] == [2, 3])


def test_one_with_nothing_to_say_gives_signs_of_life(client, box):
    assert client.beats.wait(20)


def test_a_coordinator_that_stays_away_is_given_up(client, box):
    client.away = True
    box.put("/v1/reports", 0, 0)
    with pytest.raises(Retryable, match="nobody there"):
        box.flush(20)


def test_who_leaves_can_wait_until_all_is_in_a_checkpoint(client, box):
    box.put("/v1/saved", 6, "all")
    with pytest.raises(Retryable, match="0 messages are not sent, 0 of 6 steps are saved"):
        box.flush(0.3, saved=6)
    client.saved = 6
    box.flush(20, saved=6)


def told(log: MessageLog, steps: range, coordinator: str, saved: int = 0) -> None:
    for step in steps:
        log.put(Message("/v1/reports", step, step))
        log.acknowledge(log.next(), Ack(coordinator, saved))


def test_only_so_much_is_kept_for_another_coordinator_and_one_that_needs_more_is_refused():
    log = MessageLog(most=4)
    told(log, range(10), "one")
    with pytest.raises(
        Retryable, match=r"what was told of step 5 and before is not kept.*begins again at that checkpoint"
    ):
        log.acknowledge(None, Ack("two", 0))


def test_what_a_checkpoint_holds_need_not_be_kept():
    log = MessageLog(most=4)
    told(log, range(10), "one")
    log.acknowledge(None, Ack("two", 6))
    assert (log.waiting, log.next()) == (4, Message("/v1/reports", 6, 6))


def test_what_is_not_sent_is_kept_whatever_there_is_of_it():
    log = MessageLog(most=4)
    for step in range(10):
        log.put(Message("/v1/reports", step, step))
    log.acknowledge(None, Ack("one", 0))
    assert log.waiting == 10


def test_a_client_that_was_closed_says_so_and_ends_who_still_calls():
    client = Client("http://127.0.0.1:9", "token")
    client.close()
    with pytest.raises(Closed, match="this client is closed"):
        client.get("/v1/plans", StepPlans)


def test_whoever_belongs_to_an_older_world_hears_of_it(client, box):
    client.fault = Stale("generation 1 is over")
    box.put("/v1/reports", 0, 0)
    with pytest.raises(Stale):
        box.flush(20)
    with pytest.raises(Stale):
        box.check()


def test_plans_are_at_hand_as_far_as_they_were_committed_when_the_coordinator_went(client):
    client.plans = [plan(step) for step in range(5)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(4, 20).step == 4
    client.away = True
    assert [feed.get(step, 0).step for step in range(5)] == [0, 1, 2, 3, 4]
    assert feed.get(5, 0.05) is None
    feed.forget_before(3)
    assert feed.get(0, 0).step == 3
    feed.close()


def test_the_plans_of_closed_steps_are_skipped(client):
    client.plans = [plan(7)]
    feed = PlanFeed(client, 1, 0)
    assert feed.get(0, 20).step == 7
    feed.close()
