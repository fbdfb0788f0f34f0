"""What a worker does at a step boundary: with a coordinator, without one, and with one that has not caught up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coxswain.errors import Retryable, Stale
from coxswain.layout import Device, uniform_layout
from coxswain.wire import StepDirective, StepPlan, World
from coxswain_train.worker.directives import DirectiveClient, autonomous_directive, saved_step
from coxswain_train.worker.world_check import WorldCheck
from tests.unit.coordinator_lead import begun, holds, register, small, training
from tests.unit.coordinator_samples import committed

STEP = 5
PLAN = next(p for p in committed(*range(8)).plans if p.step == STEP)
OWN = StepDirective(step=STEP, checkpoint=False, end="", plan=PLAN)


class Outbox:
    reachable = True
    end: int | None = None
    waits = 0

    def mark_unreachable(self) -> None:
        self.reachable = False

    def await_answer(self, seconds: float) -> None:
        """No time passes here."""
        assert seconds > 0
        self.waits += 1


class Client:
    """Answers with `answer`, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked, self.query, self.outbox = answer, 0, dict[str, Any](), Outbox()

    def get(self, *_: object, **query: Any) -> StepDirective | None:
        self.asked, self.query = self.asked + 1, query
        if isinstance(self.answer, Exception):
            raise self.answer
        found: StepDirective | None = self.answer
        return found


class Feed:
    def __init__(self, plan: StepPlan | None) -> None:
        self.plan = plan

    def get(self, step: int, wait: float) -> StepPlan | None:
        return self.plan


def directives(
    answer: Any, plan: StepPlan | None = PLAN, end: int | None = None, over: bool = False
) -> tuple[DirectiveClient, Client]:
    client: Any = Client(answer)
    feed: Any = Feed(plan)
    outbox: Any = client.outbox
    outbox.end = end
    check_world = WorldCheck(1, lambda: over)
    return DirectiveClient(client, outbox, feed, check_world, every=6, saved=0, rank=0), client


@pytest.mark.parametrize(
    "directive",
    [OWN, StepDirective(STEP, True, "Suspended", None), StepDirective(STEP, False, "Completed", None), None],
)
def test_the_coordinators_directive_is_followed_also_when_it_is_to_wait(directive: StepDirective | None) -> None:
    assert directives(directive)[0].next(STEP) is directive


def test_a_committed_step_does_not_wait_for_a_coordinator_that_has_not_caught_up() -> None:
    found, _ = directives(StepDirective(STEP, False, "", None))
    assert found.next(STEP) == OWN


def test_one_step_asks_a_coordinator_that_is_gone_and_the_next_ones_do_not() -> None:
    found, client = directives(Retryable("refused"))
    assert [found.next(STEP) for _ in range(3)] == [OWN] * 3
    assert client.asked == 1


def test_a_step_without_a_committed_plan_waits() -> None:
    for answer in (None, StepDirective(STEP, False, "", None), Retryable("refused")):
        assert directives(answer, plan=None)[0].next(STEP) is None


@pytest.mark.parametrize(("end", "alone"), [(STEP - 1, None), (STEP, None), (STEP + 1, OWN), (None, OWN)])
def test_a_rank_without_a_coordinator_does_not_pass_an_end_that_was_announced(end: int | None, alone: Any) -> None:
    assert directives(Retryable("refused"), end=end)[0].next(STEP) == alone


def test_a_directive_is_asked_for_in_the_name_of_the_ranks_own_world() -> None:
    """The coordinator refuses a rank of a world that is over."""
    found, client = directives(OWN)
    found.next(STEP)
    assert (client.query["generation"], client.query["step"], client.query["rank"]) == (1, STEP, 0)


@pytest.mark.parametrize(("plan", "waits"), [(PLAN, 0), (None, 1)])
def test_only_a_rank_that_may_not_go_on_alone_waits_for_a_coordinator(plan: StepPlan | None, waits: int) -> None:
    found, client = directives(Retryable("refused"), plan=plan)
    found.next(STEP)
    assert client.outbox.waits == waits


@pytest.mark.parametrize("answer", [OWN, None, Retryable("the order to leave has cut this call")])
def test_a_rank_whose_world_is_over_waits_for_no_directive(answer: Any) -> None:
    """Its calls are cut again and again until it leaves, so it never hears of the end that its peers have reached."""
    found, client = directives(answer, plan=None, end=STEP, over=True)
    with pytest.raises(Stale, match="generation 1 is over"):
        found.next(STEP)
    assert client.asked == 0


@pytest.mark.parametrize("step", [STEP - 1, STEP + 1])
def test_the_plan_of_another_step_is_not_followed(step: int) -> None:
    assert autonomous_directive(step, PLAN, 6, 0) is None


@pytest.mark.parametrize(
    ("every", "saved", "checkpoint"),
    [(5, 0, True), (5, 4, True), (5, 5, False), (6, 0, False), (1, 0, True), (0, 0, False)],
)
def test_a_worker_alone_saves_where_the_job_says_but_no_step_that_the_checkpoint_of_its_world_holds(
    every: int, saved: int, checkpoint: bool
) -> None:
    found = autonomous_directive(STEP, PLAN, every, saved)
    assert found == StepDirective(STEP, checkpoint, "", PLAN)


def test_a_world_that_began_at_the_seed_has_no_step_in_a_checkpoint() -> None:
    layout = uniform_layout([Device(0, 0)], 4)
    assert saved_step(World(1, 0, layout, layout.ranks(), ("trainer-0",), ())) == 0


@pytest.mark.looptime
@pytest.mark.parametrize("saved", [False, True])
async def test_a_worker_alone_saves_at_the_first_step_of_living_state_where_a_directive_says_so(
    tmp_path: Path, saved: bool
) -> None:
    """Before, it did not where its peers did: their checkpoint stayed incomplete, and a hang before the next one took 900 s to
    be found."""
    async with training(small(tmp_path)) as lead:
        await (lead.saved(3) if saved else lead.close(0, 1, 2))
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 3))
        await begun(lead, 2)
        world, directive = lead.state.session.world, lead.state.session.directive(3)
        assert (bool(world.live), world.first_step, directive.checkpoint) == (True, 3, not saved)
        assert autonomous_directive(3, directive.plan, 3, saved_step(world)) == directive
