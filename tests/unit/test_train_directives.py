"""What a worker does at a step boundary: with a coordinator, without one, and with one that has not caught up."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain.wire import StepDirective, StepPlan
from coxswain_train.worker.directives import DirectiveClient, autonomous_directive
from tests.unit.test_coordinator_parts import committed

STEP = 5
PLAN = next(p for p in committed(*range(8)).plans if p.step == STEP)
OWN = StepDirective(step=STEP, checkpoint=False, end="", plan=PLAN)


class Client:
    """Answers with what it was given, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    def get(self, *_: object, **__: object) -> StepDirective | None:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        found: StepDirective | None = self.answer
        return found


class Outbox:
    reachable = True

    def mark_unreachable(self) -> None:
        self.reachable = False


class Feed:
    def __init__(self, plan: StepPlan | None) -> None:
        self.plan = plan

    def get(self, step: int, wait: float) -> StepPlan | None:
        return self.plan


def directives(answer: Any, plan: StepPlan | None = PLAN) -> tuple[DirectiveClient, Client]:
    client: Any = Client(answer)
    feed: Any = Feed(plan)
    outbox: Any = Outbox()
    return DirectiveClient(client, outbox, feed, generation=1, every=6, first_step=0), client


@pytest.mark.parametrize(
    "told", [OWN, StepDirective(STEP, True, "Suspended", None), StepDirective(STEP, False, "Completed", None)]
)
def test_what_the_coordinator_says_is_done(told: StepDirective) -> None:
    assert directives(told)[0].next(STEP) is told


def test_a_coordinator_that_has_not_caught_up_is_not_waited_for() -> None:
    found, _ = directives(StepDirective(STEP, False, "", None))
    assert found.next(STEP) == OWN


def test_one_step_waits_for_a_coordinator_that_is_gone_and_the_next_ones_do_not() -> None:
    found, client = directives(Retryable("refused"))
    assert [found.next(STEP) for _ in range(3)] == [OWN] * 3
    assert client.asked == 1


def test_without_a_committed_plan_there_is_nothing_to_do_yet() -> None:
    for answer in (None, StepDirective(STEP, False, "", None), Retryable("refused")):
        assert directives(answer, plan=None)[0].next(STEP) is None


def test_a_plan_of_a_later_step_is_none_of_this_one() -> None:
    assert autonomous_directive(STEP + 1, PLAN, 6, 0) is None
    assert autonomous_directive(STEP, PLAN, 5, 0) == StepDirective(STEP, True, "", PLAN)
