"""The operator crashes before and after any write of a job's lifecycle: the end is the same, and nothing is created twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain_operator.children.job_token import TokenKeys
from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes import Connection, KubernetesCluster, find_access
from coxswain_operator.reconcile.actions import WriteStatus
from tests.integration.apiserver import ApiServer
from tests.integration.lifecycle import Performance, Stage
from tests.integration.sidebyside import Outcome, all_lived

RUNS = 12  # each crashes at every RUNS-th point, so that together they crash at each
DRAWN = 9  # more runs, which crash at points that a generator drew
DEATHS = 12  # of a life at most, but for those that deaths bring; at least half of them
POINTS = RUNS * DEATHS  # a run without crashes has some 110, and every crash adds a write
IN_TURN = 50  # crashes of the quick runs together, at least
CRASHES = 140  # of the slow runs together, drawn ones included, at least
AT_ONCE = 7
PAUSE = 0.1  # seconds between two looks where there was nothing to do: each costs the server some ten answers


@dataclass
class Fate:
    """Where operators crash. Point 2n is before write n, point 2n + 1 after it, when the answer is never read."""

    points: frozenset[int] = frozenset()
    writes: int = 0
    crashed: list[int] = field(default_factory=list)


class Mortal(Connection):
    """A connection whose process crashes at the points of its fate: from then on no call returns."""

    def __init__(self, access: Any, fate: Fate) -> None:
        super().__init__(access)
        self._fate, self.dead = fate, asyncio.Event()

    async def send(self, method: str, path: str, *arguments: Any, **options: Any) -> bytes:
        if "/events" in path:  # they are written beside the passes, also while a process is taken down
            return await self._unless_dead(method, path, *arguments, **options)
        if method == "GET":
            return await super().send(method, path, *arguments, **options)
        write, self._fate.writes = self._fate.writes, self._fate.writes + 1
        await self._crash_at(2 * write)
        answer = await super().send(method, path, *arguments, **options)
        await self._crash_at(2 * write + 1)
        return answer

    async def _unless_dead(self, method: str, path: str, *arguments: Any, **options: Any) -> bytes:
        if self.dead.is_set():
            raise Retryable("the process has crashed; its write is lost")
        return await super().send(method, path, *arguments, **options)

    async def _crash_at(self, point: int) -> None:
        if point in self._fate.points and not self.dead.is_set():
            self._fate.crashed.append(point)
            self.dead.set()
        if self.dead.is_set():
            await asyncio.Event().wait()


_KEYS = TokenKeys()  # they outlive an operator, in a Secret


async def lived(stage: Stage, fate: Fate) -> None:
    """A whole life, through as many operators as fate wants."""
    performance = Performance(stage, deadline=120)
    while performance.chapter is not None:
        access = find_access(stage.api.kubeconfig)
        async with Mortal(access, fate) as connection, KubernetesCluster(connection, namespaced=True) as cluster:
            controller = Controller(cluster, stage.coordinator, keys=_KEYS)
            alive = True
            while alive and await asyncio.to_thread(performance.goes_on):
                alive = await survives(connection, controller, stage.namespace)


async def survives(connection: Mortal, controller: Controller, namespace: str) -> bool:
    """One pass; whether the operator lived to its end."""
    work = asyncio.create_task(one_pass(controller, namespace))
    death = asyncio.create_task(connection.dead.wait())
    await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, death):
        task.cancel()
    found = await asyncio.gather(work, death, return_exceptions=True)
    if isinstance(found[0], Exception):
        raise found[0]
    return not connection.dead.is_set()


async def one_pass(controller: Controller, namespace: str) -> None:
    with suppress(Conflict, Retryable):
        decision = await controller.pass_once(namespace, "demo")
        if decision is None or not decision.of(WriteStatus):
            await asyncio.sleep(PAUSE)


def every(start: int) -> frozenset[int]:
    return frozenset(range(start, POINTS, RUNS))


def drawn(seed: int) -> frozenset[int]:
    return frozenset(random.Random(seed).sample(range(POINTS), DEATHS))


EVERY = {f"every-{n}": every(n) for n in range(RUNS)}
# Points of one run are all before writes, or all after. A crash before a write finds what one after the write before finds.
BEFORE = {f"every-{n}" for n in range(0, RUNS, 2)}
DRAWS = {f"drawn-{seed}": drawn(seed) for seed in range(DRAWN)}


@dataclass(frozen=True)
class Group:
    """Runs side by side, and one among them without a crash."""

    fates: dict[str, Fate]
    outcomes: dict[str, Outcome]

    @staticmethod
    def of(api: ApiServer, points: dict[str, frozenset[int]]) -> Group:
        fates = {"baseline": Fate(), **{name: Fate(at) for name, at in points.items()}}
        runs = {name: partial(lived, fate=fate) for name, fate in fates.items()}
        return Group(fates, asyncio.run(all_lived(api, runs, AT_ONCE)))

    def crashes(self) -> int:
        return sum(len(fate.crashed) for fate in self.fates.values())

    def assert_same_end(self, name: str) -> None:
        outcome, baseline = self.outcomes[name], self.outcomes["baseline"]
        assert baseline.error is None
        assert outcome.error is None
        assert len(self.fates[name].crashed) >= DEATHS // 2
        assert outcome.created - baseline.created == Counter()  # one less: replaced before it was made
        assert outcome.result == baseline.result


@pytest.fixture(scope="module")
def in_turn(api: ApiServer, request: pytest.FixtureRequest) -> Group:
    """Of the runs whose tests are selected."""
    params = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]  # type: ignore[attr-defined]
    names = {param["name"] for param in params}
    return Group.of(api, {name: points for name, points in EVERY.items() if name in names} or EVERY)


@pytest.fixture(scope="module")
def at_random(api: ApiServer) -> Group:
    return Group.of(api, DRAWS)


@pytest.mark.timeout(300)  # the first test waits for all runs
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in BEFORE)) for n in EVERY])
def test_operators_that_crash_at_any_write_reach_the_same_end_and_create_nothing_twice(
    in_turn: Group, name: str
) -> None:
    in_turn.assert_same_end(name)


@pytest.mark.timeout(300)
def test_they_crash_at_least_fifty_times_each_time_at_another_point(in_turn: Group) -> None:
    crashed = Counter(point for fate in in_turn.fates.values() for point in fate.crashed)
    assert len(crashed) >= IN_TURN and set(crashed.values()) == {1}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DRAWS)
def test_operators_that_crash_at_drawn_writes_reach_the_same_end(at_random: Group, name: str) -> None:
    at_random.assert_same_end(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_they_crash_at_least_a_hundred_and_forty_times(in_turn: Group, at_random: Group) -> None:
    assert in_turn.crashes() + at_random.crashes() >= CRASHES
