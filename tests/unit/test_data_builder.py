"""A builder: which steps it builds of the plans that a coordinator still has, what it reports of them, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.errors import CoxswainError, Refused, Stale
from coxswain.exits import Exit
from coxswain.layout import Device, uniform_layout
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.wire import Ack, DeliveredDigests, Evaluation, Finished, StepPlan, StepPlans, World
from coxswain_data.builder import NOTHING, Builder, Part, columns_by_replica
from coxswain_data.fetched import Fetched
from coxswain_data.step_cache import StepCache
from coxswain_link.flight import SliceRequest
from coxswain_link.http_client import JobEnded
from coxswain_link.metrics import build
from coxswain_link.step_buffer import Columns, unpack

SEQUENCES = (Sequence("code", 0, 4, 0, 6, 6), Sequence("docs", 0, 7, 5, 9, 20))
LAYOUT = uniform_layout([Device(0, 0), Device(1, 0)], layers=1)  # a replica of each trainer
WORLD = World(3, 0, LAYOUT, LAYOUT.ranks(), ("trainer-0", "trainer-1"), ())


def plan(step: int) -> StepPlan:
    """The first replica has the first sequence and the beginning of the second."""
    cut = (Slice(0, 1, 0, 3), Slice(1, 1, 3, 4))
    tasks = (Task(0, "pack", (0,), (Slice(0, 0, 0, 6),)), Task(1, "ring", (0, 1), cut))
    return StepPlan(3, step, SEQUENCES, tasks, (), 9, "", 0.0, 1.0)


class Coordinator:
    """Has the plans of some steps, and answers every message by `fault` once there is one."""

    def __init__(self) -> None:
        self.plans: dict[int, StepPlan] = {}
        self.served: list[DeliveredDigests] = []
        self.fault: CoxswainError | None = None
        self.asked: list[int] = []
        self._change = threading.Condition()

    def get(self, path: str, type_: Any, **query: Any) -> StepPlans | None:
        assert (path, query["trainer"]) == ("/v1/plans", "trainer-0")
        self.asked.append(query["from"])
        here = {step: plan for step, plan in self.plans.items() if plan.generation == query["generation"]}
        found = tuple(here[step] for step in sorted(here) if step >= query["from"])
        if not found:
            with self._change:
                self._change.wait(0.05)  # as a long poll: the feed asks again at once
        return StepPlans(found) if found else None

    def post(self, path: str, body: Any, type_: Any, **options: Any) -> Ack:
        if self.fault is not None:
            raise self.fault
        if path == "/v1/served":
            with self._change:
                self.served.append(msgspec.json.decode(body, type=DeliveredDigests))
                self._change.notify_all()
        return Ack("one", 0, heartbeat_seconds=0.02)

    def await_served(self, count: int) -> list[DeliveredDigests]:
        with self._change:
            assert self._change.wait_for(lambda: len(self.served) >= count, 20)
        return self.served


class Fetcher:
    """Token t of a sequence is 100 times the sample plus t. `fault`: raised instead."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.closed = False
        self.asked: list[list[SliceRequest]] = []  # by call

    def fetch(self, wanted: list[SliceRequest], active: Callable[[], bool]) -> tuple[list[Any], Mapping[int, str]]:
        if self.fault is not None:
            raise self.fault
        self.asked.append(wanted)
        tokens = [np.arange(w.start, w.stop, dtype=np.int32) + 100 * w.sequence.index for w in wanted]
        return tokens, {i: f"digest {w.sequence.index}" for i, w in enumerate(wanted) if not w.start}

    def close(self) -> None:
        self.closed = True


class Scene:
    def __init__(self) -> None:
        self.coordinator, self.fetcher, self.cache, self.fetched = Coordinator(), Fetcher(), StepCache(2), Fetched()
        self._before = set(threading.enumerate())

    def start(self, world: World = WORLD) -> None:
        coordinator: Any = self.coordinator
        fetcher: Any = self.fetcher
        metrics = build("constructor")
        self.builder = Builder(world, "trainer-0", coordinator, fetcher, self.cache, metrics, self.fetched, poll=0.05)
        self.thread = threading.Thread(target=self.builder.run, daemon=True)
        self.thread.start()

    def assert_ended(self) -> None:
        """The builder, and all that it had started."""
        self.thread.join(20)
        left = [thread for thread in threading.enumerate() if thread not in self._before]
        for thread in left:
            thread.join(20)
        assert not any(thread.is_alive() for thread in left), left
        assert self.fetcher.closed


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.cache.close()
    found.assert_ended()


def test_a_trainer_gets_its_own_replicas_and_reports_the_sequences_whose_first_token_it_has(scene: Scene) -> None:
    scene.coordinator.plans = {0: plan(0)}
    scene.start()
    buffer = scene.cache.provide(3, 0, 0, 20)
    assert buffer is not None
    got = unpack(buffer.fd)
    assert got.tokens.tolist() == [400, 401, 402, 403, 404, 405, 700, 701, 702]
    assert got.labels.tolist() == [401, 402, 403, 404, 405, -100, 701, 702, 703]
    assert scene.coordinator.await_served(1) == [DeliveredDigests(3, 0, ((0, "digest 4"), (1, "digest 7")))]
    with pytest.raises(Refused, match=r"its ranks are \[0\]"):
        scene.cache.provide(3, 0, 1, 20)


def test_a_replicas_columns_are_those_of_all_its_stages_in_this_trainer() -> None:
    none, tokens, labels, both = (
        Columns(*each) for each in ((False, False), (True, False), (False, True), (True, True))
    )
    parts = [Part(0, tokens), Part(0, labels), Part(0, none), Part(1, none), Part(1, labels), Part(2, none)]
    assert columns_by_replica(parts) == columns_by_replica(parts[::-1]) == {0: both, 1: labels, 2: none}


def test_held_out_sequences_are_fetched_and_not_reported(scene: Scene) -> None:
    held_out = Sequence("docs", -1, 9, 0, 4, 4)
    task = Task(2, "pack", (0,), (Slice(0, 2, 0, 4),))
    scene.coordinator.plans = {0: replace(plan(0), evaluation=Evaluation((held_out,), (task,), (), 3, first=2))}
    scene.start()
    buffer = scene.cache.provide(3, 0, 0, 20)
    assert buffer is not None and unpack(buffer.fd).tokens.tolist()[-4:] == [900, 901, 902, 903]
    assert [position for position, _ in scene.coordinator.await_served(1)[0].digests] == [0, 1]


def test_each_replica_of_a_trainer_gets_its_own_slices(scene: Scene) -> None:
    layout = uniform_layout([Device(0, 0), Device(0, 1)], layers=1)
    scene.coordinator.plans = {0: plan(0)}
    scene.start(replace(WORLD, layout=layout, seats=layout.ranks(), trainers=("trainer-0",)))
    first, second = (scene.cache.provide(3, 0, rank, 20) for rank in (0, 1))
    assert first is not None and unpack(first.fd).tokens.tolist() == [400, 401, 402, 403, 404, 405, 700, 701, 702]
    assert second is not None and unpack(second.fd).tokens.tolist() == [703]


@pytest.mark.parametrize("first", [1, 5])
def test_steps_that_are_closed_are_passed_over(scene: Scene, first: int) -> None:
    """A constructor that was started again begins at the first plan that the coordinator still has."""
    scene.coordinator.plans = {step: plan(step) for step in (first, first + 1)}
    scene.start()
    assert [digests.step for digests in scene.coordinator.await_served(2)] == [first, first + 1]
    assert scene.cache.provide(3, first - 1, 0, 0) is None


def test_plans_are_asked_for_from_the_first_step_of_the_world_on(scene: Scene) -> None:
    scene.coordinator.plans = {step: plan(step) for step in range(20)}
    scene.start(replace(WORLD, first_step=9))
    assert [digests.step for digests in scene.coordinator.await_served(2)] == [9, 10]
    assert scene.coordinator.asked[0] == 9


def take_steps(scene: Scene, count: int) -> None:
    """The trainer's only rank takes so many of 30 steps; two more are built."""
    scene.coordinator.plans = {step: plan(step) for step in range(30)}
    scene.start()
    for step in range(count):
        assert scene.cache.provide(3, step, 0, 20) is not None
    scene.coordinator.await_served(count + 2)


def test_plans_of_steps_that_every_rank_has_passed_are_forgotten(scene: Scene) -> None:
    take_steps(scene, 20)
    held = [step for step in range(30) if scene.builder.feed.peek(step) is not None]
    assert 9 < held[0] <= 20 and held == list(range(held[0], 30))


def next_world(scene: Scene, plans: dict[int, StepPlan]) -> list[SliceRequest]:
    """Steps 0 and 1 have been built; then generation 4 begins at step 1. What it fetches for step 1."""
    scene.coordinator.plans = {step: plan(step) for step in (0, 1)}
    scene.start()
    scene.coordinator.await_served(2)
    scene.cache.close()
    scene.assert_ended()
    scene.fetcher.asked.clear()
    scene.coordinator.plans = {step: replace(each, generation=4) for step, each in plans.items()}
    scene.start(replace(WORLD, generation=4, first_step=1))
    scene.coordinator.await_served(3)
    return scene.fetcher.asked[0]


def test_a_step_whose_slices_stay_is_built_in_the_next_generation_without_a_loader(scene: Scene) -> None:
    """With its digests: the step is reported by the generation that trains on it."""
    assert next_world(scene, {1: plan(1)}) == []
    buffer = scene.cache.provide(4, 1, 0, 20)
    assert buffer is not None and unpack(buffer.fd).tokens.tolist() == [400, 401, 402, 403, 404, 405, 700, 701, 702]
    assert scene.coordinator.served[2] == DeliveredDigests(4, 1, ((0, "digest 4"), (1, "digest 7")))
    assert [len(answer.tokens) for answer in scene.fetched.of(1).values()] == [6, 4]  # for the generation after it


def test_slices_that_are_cut_otherwise_are_fetched_in_the_next_generation_and_no_others(scene: Scene) -> None:
    tasks = plan(1).tasks
    other = replace(tasks[1], slices=(Slice(0, 1, 0, 2), Slice(1, 1, 2, 4)))
    assert next_world(scene, {1: replace(plan(1), tasks=(tasks[0], other))}) == [SliceRequest(SEQUENCES[1], 0, 3)]


def test_a_step_of_other_sequences_has_those_in_the_next_generation(scene: Scene) -> None:
    """As after an edit of the mix: a step is no name of its tokens."""
    others = (replace(SEQUENCES[0], index=5), SEQUENCES[1])
    (asked,) = next_world(scene, {1: replace(plan(1), sequences=others)})
    assert asked.sequence == others[0]
    buffer = scene.cache.provide(4, 1, 0, 20)
    assert buffer is not None and unpack(buffer.fd).tokens.tolist()[:2] == [500, 501]


def test_the_tokens_of_the_oldest_step_that_a_rank_may_ask_for_are_kept() -> None:
    fetched = Fetched()
    for step in (3, 4, 5):
        fetched.keep(step, {SliceRequest(SEQUENCES[0], 0, step): NOTHING}, 4)
    assert [bool(fetched.of(step)) for step in (3, 4, 5)] == [False, True, True]


def test_tokens_of_steps_that_every_rank_has_passed_are_not_kept(scene: Scene) -> None:
    take_steps(scene, 20)
    held = [step for step in range(30) if scene.fetched.of(step)]
    assert held[0] >= 17 and held[-1] == 21


def test_the_tokens_of_all_steps_that_no_rank_has_taken_yet_are_kept_for_the_next_generation(scene: Scene) -> None:
    scene.coordinator.plans = {0: plan(0), 1: plan(1)}
    scene.start()
    scene.coordinator.await_served(2)
    assert [bool(scene.fetched.of(step)) for step in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (Refused("SourceChanged", "a.txt changed"), "a.txt changed"),
        (ZeroDivisionError("by zero"), "the constructor failed: ZeroDivisionError: by zero"),
    ],
)
def test_what_keeps_a_step_from_being_built_reaches_the_worker_and_ends_the_builder(
    scene: Scene, fault: Exception, seen: str
) -> None:
    scene.fetcher.fault = fault
    scene.coordinator.plans = {0: plan(0)}
    scene.start()
    with pytest.raises(CoxswainError, match=seen):
        scene.cache.provide(3, 0, 0, 20)
    scene.assert_ended()


def test_a_refusal_of_its_reports_reaches_the_worker(scene: Scene) -> None:
    scene.coordinator.fault = Refused("TokenRejected", "the job's token is another")
    scene.start()
    with pytest.raises(Refused, match="another"):
        scene.cache.provide(3, 0, 0, 20)


@pytest.mark.parametrize("over", [Stale("generation 3 is over"), JobEnded(Finished(Exit.DONE, "Completed", ""))])
def test_the_end_of_its_generation_ends_it_and_is_no_fault_of_a_worker(scene: Scene, over: CoxswainError) -> None:
    scene.coordinator.fault = over
    scene.start()
    scene.assert_ended()
    assert scene.cache.provide(3, 0, 0, 0) is None
