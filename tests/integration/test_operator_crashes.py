"""The operator dies before and after any write of a job's whole life: the same end, and nothing is made twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain_operator.cluster import Conflict, Manifest
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes import Connection, KubernetesCluster, find_access
from tests.integration.apiserver import ApiServer
from tests.integration.audit import created
from tests.integration.life import LIFE, Stage
from tests.integration.operator_parts import new_namespace

pytestmark = pytest.mark.slow  # five minutes on two cores

LIVES = 12  # each dies at every LIVES-th point, so that all of them together die at each
DRAWN = 5  # more lives, which die at points that a generator drew
DEATHS = 12  # of a life at most, but for those that deaths bring; at least half of them
POINTS = LIVES * DEATHS  # a life without deaths has some 130, and every death brings a write more


@dataclass
class Fate:
    """When operators die. Point 2n is before write n, point 2n + 1 after it, when the answer is never read."""

    points: frozenset[int] = frozenset()
    writes: int = 0
    deaths: int = 0


class Mortal(Connection):
    """A connection whose process dies at the points of its fate: from then on no call returns."""

    def __init__(self, access: Any, fate: Fate) -> None:
        super().__init__(access)
        self._fate, self.dead = fate, asyncio.Event()

    async def send(self, method: str, path: str, *arguments: Any, **options: Any) -> bytes:
        if method == "GET" or path.endswith("/events"):  # events are written beside the passes
            return await super().send(method, path, *arguments, **options)
        write, self._fate.writes = self._fate.writes, self._fate.writes + 1
        await self._die_at(2 * write)
        answer = await super().send(method, path, *arguments, **options)
        await self._die_at(2 * write + 1)
        return answer

    async def _die_at(self, point: int) -> None:
        if point in self._fate.points and not self.dead.is_set():
            self._fate.deaths += 1
            self.dead.set()
        if self.dead.is_set():
            await asyncio.Event().wait()


async def lived(api: ApiServer, fate: Fate) -> Stage:
    """A whole life, through as many operators as fate wants."""
    stage, chapters = Stage(api, new_namespace(api)), iter(LIFE)
    chapter = next(chapters)
    chapter.act(stage)
    while chapter:
        async with Mortal(find_access(api.kubeconfig), fate) as connection, KubernetesCluster(connection) as cluster:
            controller = Controller(cluster, stage.coordinator)
            while chapter and await survives(connection, controller, stage.namespace):
                stage.tick()
                if chapter.holds(stage):
                    chapter = next(chapters, None)
                    if chapter:
                        chapter.act(stage)
    return stage


async def survives(connection: Mortal, controller: Controller, namespace: str) -> bool:
    """One pass; whether the operator lived to its end."""
    work = asyncio.create_task(controller.pass_once(namespace, "demo"))
    death = asyncio.create_task(connection.dead.wait())
    await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
    with suppress(Conflict, Retryable, asyncio.CancelledError):
        if work.done():
            await work
    for task in (work, death):
        task.cancel()
    await asyncio.gather(work, death, return_exceptions=True)
    return not connection.dead.is_set()


@pytest.fixture(scope="module")
def undisturbed(api: ApiServer) -> tuple[Manifest, Counter[str]]:
    """How the life ends, and what it makes, when nobody dies."""
    stage = asyncio.run(lived(api, Fate()))
    return stage.result(), created(api, stage.namespace)


def every(start: int) -> frozenset[int]:
    return frozenset(range(start, POINTS, LIVES))


def drawn(seed: int) -> frozenset[int]:
    return frozenset(random.Random(seed).sample(range(POINTS), DEATHS))


@pytest.mark.parametrize("points", [every(life) for life in range(LIVES)] + [drawn(seed) for seed in range(DRAWN)])
async def test_operators_that_die_at_any_write_reach_the_same_end_and_make_nothing_twice(
    api: ApiServer, undisturbed: tuple[Manifest, Counter[str]], points: frozenset[int]
) -> None:
    fate = Fate(points)
    stage = await lived(api, fate)
    assert fate.deaths >= DEATHS // 2
    assert created(api, stage.namespace) - undisturbed[1] == Counter()  # one less: replaced before it was made
    assert stage.result() == undisturbed[0]
