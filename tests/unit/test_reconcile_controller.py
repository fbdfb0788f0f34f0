"""The controller's loop in virtual time: watches that lag, repeat and lose events cost time and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import chain, repeat
from typing import Any

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.errors import Retryable
from coxswain.names import API_VERSION, LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE
from coxswain.wire import JobReport
from coxswain_operator.cluster import Conflict, Denied, WatchEvent
from coxswain_operator.controller import WATCHED, Controller
from coxswain_operator.executor import BATCH_SECONDS
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.settings import Settings
from coxswain_operator.single_job import run_job
from coxswain_operator.views import Manifest, NodeView
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    data_mix,
    data_source,
    live,
    manifest,
    report,
    report_text,
    training_job,
    with_job,
)
from tests.unit.test_reconcile_lifecycle import passes, running
from tests.unit.test_reconcile_properties import Watched


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())


def now() -> float:
    return asyncio.get_running_loop().time()


async def delay(world: FakeCluster) -> float:
    """After one more pass, until the next; with a poll of five seconds."""
    found = await Controller(world, world, world.clock, poll_seconds=5.0).reconcile_job(NAMESPACE, "demo")
    assert found is not None
    return found.most


def foreign_pod(name: str) -> Manifest:
    """Of a job of the same name that existed before."""
    labels = {LABEL_ROLE: "trainer", LABEL_INDEX: "0", LABEL_INCARNATION: "0", LABEL_JOB_UID: "before"}
    head = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {}, "status": {"phase": "Running"}}


def alone(world: FakeCluster, poll: float = 1.0) -> Coroutine[Any, Any, Manifest | None]:
    """Passes until the job is over."""
    controller = Controller(world, world, lambda: 1000.0 + now(), poll_seconds=poll)
    return run_job(controller, world, NAMESPACE, "demo")


class Kubelet:
    """Starts pods, and sends watch events as `delivery` says: 0 loses the event, 1 delivers it, 3 delivers it three times."""

    def __init__(self, world: FakeCluster, delivery: list[int]) -> None:
        self._world, self._delivery = world, delivery

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.4)
            self._world.now = 1000.0 + now()
            self._world.reap()
            self._world.run_all()
            ring(self._world, self._delivery.pop() if self._delivery else 0)


def ring(world: FakeCluster, times: int) -> None:
    for queue in world.watchers:
        for _ in range(times):
            queue.put_nowait(WatchEvent("MODIFIED", world.job))


async def until(holds: Callable[[], bool]) -> None:
    """Within five virtual minutes."""
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it never came to hold")


@given(
    st.lists(st.sampled_from([0, 1, 3]), max_size=30),
    st.lists(st.sampled_from(["fail", "vanish", "delete"]), max_size=4),
)
@settings(max_examples=15)
def test_lost_and_repeated_events_lead_to_the_same_end(delivery: list[int], fates: list[str]) -> None:
    async def scenario() -> None:
        world = Watched()
        world.before_call = lambda verb, what: None
        run = asyncio.create_task(alone(world))
        kubelet = asyncio.create_task(Kubelet(world, delivery).run())
        for fate in fates:
            await until(lambda: len([p for p in world.pods() if p["status"]["phase"] == "Running"]) == 4)
            world.hurt("trainer-1", fate)
            await asyncio.sleep(3)
        await until(lambda: len([p for p in world.pods() if p["status"]["phase"] == "Running"]) == 4)
        world.ending = True
        world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
        job = await run
        kubelet.cancel()
        assert job is not None and world.state == "Completed"
        assert not [p for p in world.pods() if live(p)]

    in_virtual_time(scenario)


def test_a_change_wakes_the_controller_long_before_its_poll() -> None:
    async def scenario() -> None:
        world = FakeCluster(training_job(), data_source())
        run = asyncio.create_task(alone(world, poll=3600))
        await until(lambda: len(world.watchers) == len(WATCHED))
        await asyncio.sleep(10)
        world.put(data_mix())
        ring(world, 1)
        began = now()
        await until(lambda: len(world.pods()) == 4)
        assert now() - began < 1
        run.cancel()

    in_virtual_time(scenario)


def test_a_run_that_is_to_leave_ends_at_once_and_leaves_no_task() -> None:
    class Slow(FakeCluster):
        async def watch(
            self, kind: str, namespace: str, labels: dict[str, str] | None = None
        ) -> AsyncIterator[WatchEvent]:
            try:
                async for event in super().watch(kind, namespace, labels):
                    yield event
            finally:
                await asyncio.sleep(0.5)

    async def scenario() -> None:
        world, leave = Slow(training_job(), data_source()), asyncio.Event()
        run = asyncio.create_task(run_job(Controller(world, world, poll_seconds=3600), world, NAMESPACE, "demo", leave))
        await asyncio.sleep(10)
        leave.set()
        job = await run
        assert job is not None and now() < 11
        assert len(asyncio.all_tasks()) == 1

    in_virtual_time(scenario)


def test_a_storm_of_events_is_one_pass() -> None:
    async def scenario() -> None:
        world = FakeCluster(training_job(), data_source())
        run = asyncio.create_task(alone(world, poll=3600))
        await asyncio.sleep(10)
        looks: list[str] = []
        world.before_call = lambda verb, what: looks.append(what) if (verb, what) == ("get", "TrainingJob") else None
        for _ in range(4):
            ring(world, 50)
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        assert len(looks) == 1
        run.cancel()

    in_virtual_time(scenario)


def test_whatever_the_api_server_refuses_once_is_done_by_a_second_look() -> None:
    async def scenario() -> None:
        world = with_job()
        refusals = {
            "patch": [Conflict("moved on"), Retryable("503")],
            "list": [OSError("reset")],
            "create": [Retryable("500")],
        }

        def refuse(verb: str, what: str) -> None:
            if refusals.get(verb):
                raise refusals[verb].pop()

        world.before_call = refuse
        run = asyncio.create_task(alone(world))
        await until(lambda: len(world.pods()) == 4)
        assert len(world.created) == 4 and not any(refusals.values())
        run.cancel()

    in_virtual_time(scenario)


def test_a_leftover_of_the_same_name_is_waited_for_without_haste() -> None:
    async def scenario() -> None:
        world = with_job()
        leftover = foreign_pod("demo-trainer-0-0")
        world.put(leftover)
        looks: list[str] = []
        world.before_call = lambda verb, what: looks.append(what) if (verb, what) == ("get", "TrainingJob") else None
        run = asyncio.create_task(alone(world))
        await asyncio.sleep(30)
        assert len(looks) < 40
        world.vanish(leftover)
        await until(lambda: "demo-trainer-0-0" in world.created)
        run.cancel()

    in_virtual_time(scenario)


def test_a_quota_that_is_used_up_is_waited_for_with_one_try_in_a_while() -> None:
    async def scenario() -> None:
        world, tries, free = with_job(), list[str](), asyncio.Event()

        def refuse(verb: str, what: str) -> None:
            if verb == "create" and what.startswith("demo-trainer") and not free.is_set():
                tries.append(what)
                raise Denied("Forbidden", "pods is forbidden: exceeded quota: gpus")

        world.before_call = refuse
        run = asyncio.create_task(alone(world))
        await asyncio.sleep(60)
        assert 2 <= len(tries) <= 12 and world.state != "Failed"
        free.set()
        await until(lambda: len(world.pods()) == 4)
        run.cancel()

    in_virtual_time(scenario)


def test_a_job_that_does_not_exist_is_nothing_to_run() -> None:
    async def scenario() -> None:
        assert await alone(FakeCluster()) is None

    in_virtual_time(scenario)


async def finished(**spec: Any) -> FakeCluster:
    """A completed job whose pods have ended, and had their time to leave."""
    world = await running(**spec)
    for pod in list(world.pods()):
        world.end(pod, 0, report_text("Completed", step=100))
    await passes(world, 2)  # that of its end, and that which takes its budget away
    world.tick(14)
    return world


async def test_a_pass_that_wrote_is_followed_by_another_at_once() -> None:
    world = with_job()
    assert await delay(world) == 0.0


async def test_a_name_that_is_taken_is_tried_again_after_a_second() -> None:
    world = FakeCluster(data_source(), data_mix(), training_job(), foreign_pod("demo-trainer-0-0"))
    assert await delay(world) == 1.0


async def test_a_quota_that_refuses_again_is_asked_every_ten_seconds() -> None:
    world = with_job()

    def refuse(verb: str, what: str) -> None:
        if verb == "create" and what.startswith("demo-trainer"):
            raise Denied("Forbidden", "pods is forbidden: exceeded quota: gpus")

    world.before_call = refuse
    controller = Controller(world, world, world.clock)
    delays = [await controller.reconcile_job(NAMESPACE, "demo") for _ in range(3)]
    world.before_call = lambda verb, what: None
    world.put(foreign_pod("demo-trainer-1-0"))
    delays.append(await controller.reconcile_job(NAMESPACE, "demo"))
    assert [delay.most for delay in delays if delay] == [1.0, 10.0, 10.0, 1.0]


async def test_a_name_that_another_owner_holds_is_tried_again_every_ten_seconds() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {}}
    world = FakeCluster(data_source(), data_mix(), training_job(), service)
    controller = Controller(world, world, world.clock)
    delays = []
    for _ in range(4):
        delays.append(await controller.reconcile_job(NAMESPACE, "demo"))
        world.tick(10)
    assert [delay.most for delay in delays if delay] == [1.0, 10.0, 10.0, 10.0]
    assert "NameTaken: Service demo belongs to no TrainingJob" in world.condition("Succeeded")["message"]


async def test_all_objects_that_hold_a_name_are_counted() -> None:
    world = FakeCluster(
        data_source(), data_mix(), training_job(), foreign_pod("demo-trainer-0-0"), foreign_pod("demo-trainer-1-0")
    )
    controller = Controller(world, world, world.clock)
    for _ in range(3):
        await controller.reconcile_job(NAMESPACE, "demo")
        world.tick(10)
    assert " (and 1 more)" in world.condition("Succeeded")["message"]


async def test_a_name_that_an_earlier_job_of_the_same_name_still_holds_is_tried_again_every_second() -> None:
    owner = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "demo", "uid": "before", "controller": True}
    head = {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [owner], "finalizers": ["example.com/slow"]}
    left = {"apiVersion": "v1", "kind": "Service", "metadata": {**head, "deletionTimestamp": stamp(900.0)}, "spec": {}}
    world = FakeCluster(data_source(), data_mix(), training_job(), left)
    controller = Controller(world, world, world.clock)
    delays = []
    for _ in range(4):
        delays.append(await controller.reconcile_job(NAMESPACE, "demo"))
        world.tick()
    assert [delay.most for delay in delays if delay] == [1.0, 1.0, 1.0, 1.0]


async def test_a_quiet_job_is_looked_at_when_its_poll_or_something_earlier_is_due() -> None:
    world = await running(activeDeadlineSeconds=60)
    assert await delay(world) == 5.0
    world.now = 1000.0 + 57
    await passes(world, 1)  # writes progress
    assert await delay(world) == 2.0
    looks = 3  # at its pods, at those of earlier jobs, and to decide
    times = chain(repeat(world.now, looks), repeat(world.now + 10))  # the pass itself took long
    found = await Controller(world, world, lambda: next(times)).reconcile_job(NAMESPACE, "demo")
    assert found is not None and found.most == 0.0


async def test_a_job_that_saves_for_another_size_is_quiet_although_its_coordinator_is_asked_in_each_pass() -> None:
    bounds = {"minCount": 1, "maxCount": 4}
    world = await running(trainers={"count": 2, **bounds})
    world.edit("TrainingJob", "demo", trainers={"count": 3, **bounds})
    await passes(world)
    world.calls.clear()
    assert (await delay(world), len(world.calls)) == (5.0, 1)


async def test_a_controller_has_the_machines_time_and_the_settings_that_it_is_given() -> None:
    world = with_job()
    await Controller(world, world, settings=Settings(train_image="registry/train:2")).pass_once(NAMESPACE, "demo")
    assert abs(seconds(world.job["status"]["updatedAt"]) - time.time()) < 3600
    images = {c["image"] for pod in world.pods() for c in pod["spec"]["containers"]}
    assert images == {"registry/train:2", "coxswain-data"}


async def test_a_policy_that_is_named_is_waited_for() -> None:
    job = training_job(parallelismRef={"name": "wide"})
    policy = manifest("ParallelismPolicy", "wide", job["spec"].pop("parallelism"))
    world = FakeCluster(data_source(), data_mix(), job)
    for created in (0, 4):
        await passes(world)
        assert len(world.created) == created
        world.put(policy)


async def test_a_finished_job_is_looked_at_every_ten_minutes_or_when_it_expires() -> None:
    assert await delay(await finished()) == 600.0
    world = await finished(ttlSecondsAfterFinished=100)
    assert await delay(world) == 84.0


async def test_a_job_that_has_ended_and_whose_pods_run_is_polled() -> None:
    world = await running()
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await passes(world, 1)
    assert await delay(world) == 5.0


@pytest.mark.parametrize(("quiet", "rest"), [(False, 0.5), (True, 5.0)])
async def test_a_pass_rests_for_its_cost_and_a_quiet_one_for_ten_times_as_long(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, rest: float
) -> None:
    world = await running() if quiet else with_job()
    times = iter((1.0, 1.5))
    monkeypatch.setattr("coxswain_operator.controller.time.thread_time", lambda: next(times))
    found = await Controller(world, world, world.clock).reconcile_job(NAMESPACE, "demo")
    assert found is not None and (found.least, found.most) == (rest, 1.0 if quiet else 0.0)


async def test_only_the_coordinator_of_a_job_that_is_not_over_is_asked_and_its_report_is_passed_on() -> None:
    passed: list[JobReport | None] = []

    async def answer(job: Manifest) -> JobReport:
        return report("Running", 11)

    for world in (await running(), await finished()):
        world.report = answer  # type: ignore[method-assign]
        controller = Controller(world, world, world.clock, on_report=lambda job, found: passed.append(found))
        await controller.pass_once(NAMESPACE, "demo")
    assert [found.step if found else None for found in passed] == [11, None]


@pytest.mark.parametrize(
    ("rule", "deleting", "disrupted", "asked"),
    [(False, False, False, 0), (True, False, False, 1), (False, True, False, 1), (False, False, True, 1)],
)
async def test_nodes_are_read_only_where_a_rule_a_deletion_or_a_disruption_needs_them(
    rule: bool, deleting: bool, disrupted: bool, asked: int
) -> None:
    pressure = {"name": "mine", "action": "Fail", "onNodeConditions": [{"type": "MemoryPressure"}]}
    world = await running(failurePolicy={"rules": [pressure]} if rule else {})
    if deleting:
        await world.delete("Pod", NAMESPACE, "demo-trainer-1-0")
    if disrupted:
        target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        world.pod("trainer-1")["status"].setdefault("conditions", []).append(target)
    looks: list[int] = []

    async def nodes() -> dict[str, NodeView]:
        looks.append(1)
        return {}

    world.nodes = nodes  # type: ignore[method-assign]
    observed = await Controller(world, world, world.clock).observe(NAMESPACE, "demo")
    assert observed is not None and len(looks) == asked
    assert all(p.node_conditions == ({("Ready", "Gone")} if asked else set()) for p in observed.pods)


async def test_nodes_that_the_operator_may_not_read_are_not_taken_for_lost() -> None:
    world = await running()
    meta = world.pod("trainer-1")["metadata"]
    meta |= {"deletionTimestamp": stamp(world.now - 100), "finalizers": ["example.com/slow"]}
    await passes(world, 2)
    assert "deletionGracePeriodSeconds" not in meta  # not deleted by force


async def test_of_many_names_that_are_taken_a_pass_looks_at_five() -> None:
    others = [foreign_pod(f"demo-trainer-{i}-0") for i in range(9)]
    world = FakeCluster(data_source(), data_mix(), training_job(trainers={"count": 9}), *others)
    controller = Controller(world, world, world.clock)
    await controller.reconcile_job(NAMESPACE, "demo")
    looks: list[str] = []
    world.before_call = lambda verb, what: looks.append(what) if (verb, what) == ("get", "Pod") else None
    await controller.reconcile_job(NAMESPACE, "demo")
    assert len(looks) == 5


async def test_a_child_of_its_own_that_a_list_does_not_show_yet_is_not_said_to_be_anothers() -> None:
    world, find = with_job(), FakeCluster.list
    await passes(world)

    async def late(kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        return [] if kind == "Service" else await find(world, kind, namespace, labels)

    world.list = late  # type: ignore[method-assign]
    controller = Controller(world, world, world.clock)
    for _ in range(3):
        await controller.reconcile_job(NAMESPACE, "demo")
        world.tick(10)
    assert "NameTaken" not in world.condition("Succeeded")["message"]


def test_without_a_watch_the_poll_still_finds_changes() -> None:
    class Deaf(FakeCluster):
        async def watch(
            self, kind: str, namespace: str, labels: dict[str, str] | None = None
        ) -> AsyncIterator[WatchEvent]:
            raise ConnectionError("watch closed")
            yield

    async def scenario() -> None:
        world = Deaf(training_job(), data_source())
        run = asyncio.create_task(alone(world))
        await asyncio.sleep(5)
        world.put(data_mix())
        began = now()
        await until(lambda: len(world.pods()) == 4)
        assert now() - began < 3
        run.cancel()

    in_virtual_time(scenario)


def test_a_pass_that_creates_too_long_ends_and_the_next_one_goes_on_at_once() -> None:
    """Thousands of pods on a slow server must not hold the place in the queue that another job waits for."""

    async def scenario() -> None:
        world = with_job()
        controller, create = Controller(world, world, world.clock), world.create

        async def slow(item: Manifest) -> Manifest:
            await asyncio.sleep(BATCH_SECONDS if item["kind"] == "Pod" else 0)
            return await create(item)

        world.create = slow  # type: ignore[method-assign]
        rest = await controller.reconcile_job(NAMESPACE, "demo")
        assert rest is not None and (len(world.created), rest.most) == (1, 0.0)
        world.create = create  # type: ignore[method-assign]
        await controller.reconcile_job(NAMESPACE, "demo")
        assert len(world.created) == 4

    in_virtual_time(scenario)
