"""Any fate of pods and any crash of the operator lead to the same end; nothing is created twice, nothing healthy is ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.names import LABEL_ATTEMPT, LABEL_INCARNATION
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.incarnations import Numbers, numbers
from coxswain_operator.reconcile.ranges import decode
from coxswain_operator.reconcile.status import JobStatus, read_status
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Manifest
from tests.draws import draws
from tests.unit.fake_cluster import (
    NAMESPACE,
    Crash,
    FakeCluster,
    data_mix,
    data_source,
    live,
    member_of,
    report,
    report_text,
    training_job,
)

MEMBERS = ("coordinator", "loader-0", "trainer-0", "trainer-1")
WORKERS = MEMBERS[1:]
MUTATING = ("create", "delete", "patch", "publish", "stop")

examples = settings(max_examples=draws(15, 60))


class Watched(FakeCluster):
    """A world that objects as soon as the operator breaks a promise."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(data_source(), data_mix(), training_job(**spec))
        self.harmed: set[str] = set()  # uids of pods that the test has hurt
        self.failures = 0  # that must be counted
        self.unseen = 0  # pods that went before the operator had seen them: their numbers are used again
        self.ending = False  # the job may end its pods now
        self.crash_after = -1  # mutating calls until the operator crashes
        self.writes_in_pass = 0
        self.before_call = self._check

    def _check(self, verb: str, what: str) -> None:
        if verb not in MUTATING:
            return
        if self.crash_after == 0:  # and it stays dead: what it did beside this does not go on
            raise Crash
        self.crash_after -= 1
        if verb == "patch" and what == "demo":
            self.writes_in_pass += 1
            assert self.writes_in_pass == 1, "a second status write in one pass"

    async def create(self, manifest: Manifest) -> Manifest:
        if manifest["kind"] == "Pod" and ("Pod", manifest["metadata"]["name"]) not in self.objects:
            self._check_new_pod(manifest)
        return await super().create(manifest)

    def _check_new_pod(self, pod: Manifest) -> None:
        member, number = member_of(pod), int(pod["metadata"]["labels"][LABEL_INCARNATION])
        assert self.status().attempts and self.numbers().of(member).number == number, (
            f"{member}: created before its number was stored"
        )
        others = [p for p in self.pods() if member_of(p) == member and live(p)]
        assert not others, f"a second live pod of {member}"

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        pod = self.objects.get((kind, name))
        if kind == "Pod" and pod is not None and live(pod):
            old = int(pod["metadata"]["labels"][LABEL_ATTEMPT]) < self.status().attempt
            allowed = self.ending or old or pod["metadata"]["uid"] in self.harmed
            assert allowed, f"{name} was healthy, and was deleted"
            assert not force or self.lost(pod), f"{name} was deleted by force, and its node is up"
        await super().delete(kind, namespace, name, uid, force)

    def vanish(self, pod: Manifest) -> None:
        number = int(pod["metadata"]["labels"][LABEL_INCARNATION])
        current = self.numbers().of(member_of(pod)).number == number and member_of(pod) in decode(self.status().seen)
        self.unseen += not current and ("Pod", pod["metadata"]["name"]) in self.objects
        super().vanish(pod)

    def check_creates(self) -> None:
        """Every pod has a number of its own."""
        assert len(self.created) <= sum(self.numbers().of(m).number + 1 for m in MEMBERS) + self.unseen

    def status(self) -> JobStatus:
        return read_status(self.job)

    def numbers(self) -> Numbers:
        return numbers(self.status())

    async def one_pass(self, crash_after: int = -1) -> None:
        """By a controller that remembers nothing; it crashes at the given mutating call."""
        self.crash_after, self.writes_in_pass = crash_after, 0
        try:
            await Controller(self, self, self.clock).pass_once(NAMESPACE, "demo")
        except* Crash:
            pass
        finally:
            self.crash_after = -1

    async def settle(self) -> None:
        """Lets everything that can happen by itself happen."""
        for _ in range(8):
            await self.one_pass()
            self.reap()
            self.run_all()
            self.tick(61)  # longer than any back-off
        self.check_creates()

    def leave_as_asked(self) -> None:
        """The coordinator has saved, and everybody leaves."""
        self.calls.clear()
        self.report_now = None
        for pod in self.pods():
            if pod["status"]["phase"] == "Running":
                self.end(pod, 3, report_text("Suspended", step=20))

    # --- fates ---------------------------------------------------------------------------------------------------

    def hurt(self, member: str, fate: str) -> None:
        """Fails, disrupts, deletes or loses the pod of a member, if one runs."""
        pod = self.pod(member)
        if pod is None or pod["status"]["phase"] != "Running" or pod["metadata"]["uid"] in self.harmed:
            return
        self.harmed.add(pod["metadata"]["uid"])
        if fate == "node":
            pod["metadata"]["deletionTimestamp"] = stamp(self.now + 60)
            self.set_node(pod["spec"]["nodeName"], "Unknown")
        elif fate == "fail":
            self.failures += 1
            self.end(pod, 1)
        elif fate == "disrupt":
            self.end(pod, 137, disrupted=True)
        elif fate == "vanish":
            self.vanish(pod)
        else:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    async def step(self, what: tuple[Any, ...]) -> None:
        match what:
            case ("pass",):
                await self.one_pass()
            case ("crash", after):
                await self.one_pass(after)
            case ("start", member):
                pod = self.pod(member)
                if pod is not None and pod["status"]["phase"] == "Pending":
                    self.run(pod)
            case ("reap",):
                self.reap()
            case ("tick", seconds):
                self.tick(seconds)
            case ("mend", member):
                self.objects.pop(("Node", f"node-of-{member}"), None)
            case (fate, member):
                self.hurt(member, fate)


fates = st.sampled_from(["fail", "disrupt", "vanish", "delete", "node"])
steps = st.lists(
    st.one_of(
        st.just(("pass",)),
        st.tuples(st.just("crash"), st.integers(0, 12)),
        st.tuples(st.just("start"), st.sampled_from(MEMBERS)),
        st.tuples(fates, st.sampled_from(WORKERS)),
        st.tuples(st.just("mend"), st.sampled_from(WORKERS)),
        st.just(("reap",)),
        st.tuples(st.just("tick"), st.integers(1, 30)),
    ),
    max_size=40,
)


async def lived_through(world: Watched, what: list[tuple[Any, ...]]) -> None:
    await world.settle()
    world.report_now = report("Running", 10)
    for step in what:
        await world.step(step)
    await world.settle()


@given(steps)
@examples
def test_all_failures_of_pods_and_crashes_of_the_operator_end_completed(what: list[tuple[Any, ...]]) -> None:
    async def scenario() -> None:
        world = Watched(failurePolicy={"maxRestarts": 1000})
        await lived_through(world, what)
        assert {member_of(p) for p in world.pods() if live(p)} == set(MEMBERS)
        world.ending = True
        world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
        await world.settle()
        assert world.state == "Completed"
        assert not [p for p in world.pods() if live(p)]

    asyncio.run(scenario())


@given(steps)
@examples
def test_failures_are_counted_exactly_once_and_the_limit_decides_the_end(what: list[tuple[Any, ...]]) -> None:
    only_failures = [("fail", s[1]) if s[0] in ("disrupt", "vanish", "delete", "node") else s for s in what]

    async def scenario() -> None:
        world = Watched(failurePolicy={"maxRestarts": 2})
        world.ending = True  # the limit ends the job, and with it healthy pods
        await lived_through(world, only_failures)
        status = world.job["status"]
        if world.failures > 2:
            assert world.state == "Failed"
        else:
            assert world.state == "Running"
            assert status["restarts"] == {"counted": world.failures, "ignored": 0}

    asyncio.run(scenario())


@given(steps, st.lists(st.tuples(st.just("crash"), st.integers(0, 6)), max_size=12))
@examples
def test_nothing_that_happens_after_the_end_changes_the_end(
    what: list[tuple[Any, ...]], crashes: list[tuple[Any, ...]]
) -> None:
    async def scenario() -> None:
        world = Watched()
        await world.settle()
        world.ending = True
        world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
        for step in crashes:
            await world.step(step)
        await world.settle()
        status, created = world.job["status"], len(world.created)
        for step in what:
            await world.step(step)
        assert (world.job["status"], len(world.created)) == (status, created)

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.sampled_from(["suspend", "resume", "pass", "crash"]), st.integers(0, 12)), max_size=30))
@examples
def test_suspension_and_resumption_with_crashes_end_with_the_gang_running(what: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        world = Watched()
        world.ending = True  # suspension ends healthy pods
        await world.settle()
        for verb, after in what:
            if verb in ("suspend", "resume"):
                world.edit("TrainingJob", "demo", suspend=verb == "suspend")
                if verb == "suspend" and after % 2 and (pod := world.pod("coordinator")) is not None:
                    world.end(pod, 3, report_text("Suspended", step=20))
            await world.one_pass(after if verb == "crash" else -1)
            world.reap()
        world.edit("TrainingJob", "demo", suspend=False)
        await world.settle()
        assert {member_of(p) for p in world.pods() if live(p)} == set(MEMBERS)
        assert world.job["status"]["restarts"]["counted"] == 0

    asyncio.run(scenario())


scalings = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.integers(0, 14)),
        st.tuples(st.sampled_from(["leave", "train", "pass"]), st.just(0)),
    ),
    max_size=25,
)


@given(scalings)
@examples
def test_scaling_at_any_moment_with_crashes_ends_with_the_last_count_and_no_counted_restart(
    what: list[tuple[str, int]],
) -> None:
    async def scenario() -> None:
        world, count = Watched(trainers={"count": 2, "minCount": 1, "maxCount": 4}, failurePolicy={"maxRestarts": 0}), 2
        await world.settle()
        for verb, number in what:
            if verb == "scale":
                count = number
                world.edit("TrainingJob", "demo", trainers={"count": number, "minCount": 1, "maxCount": 4})
            elif verb == "leave" and world.calls:
                world.leave_as_asked()
            elif verb == "train":
                world.run_all()
                world.report_now = report("Running", 10)
            await world.one_pass(number if verb == "crash" else -1)
            world.reap()
            world.tick()
        world.tick(600)  # a save that is late is not waited for
        world.ending = True
        await world.settle()
        assert {member_of(p) for p in world.pods() if live(p)} == {
            *MEMBERS[:2],
            *(f"trainer-{i}" for i in range(count)),
        }
        assert world.job["status"]["restarts"]["counted"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("after", range(16))
def test_an_operator_that_crashes_in_its_first_pass_leaves_no_trace(after: int) -> None:
    async def scenario() -> None:
        world = Watched()
        await world.one_pass(crash_after=after)
        await world.settle()
        assert sorted(world.created) == [f"demo-{m}-0" for m in MEMBERS]
        assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}

    asyncio.run(scenario())
