"""What a coordinator that was stopped between its fence and a write changes of what its successor has written: nothing."""

from __future__ import annotations

import asyncio

import pytest

from coxswain.errors import Stale
from coxswain.planlog import steps_key
from coxswain_cli.readers.stored_run import StoredRun
from coxswain_cli.reporting.read import read_steps
from coxswain_link.store import Store
from tests.unit.coordinator_lead import Lead, leading, small, training

pytestmark = pytest.mark.looptime


def worlds(store: Store) -> dict[int, int]:
    """The world of each step, as readers of the location have it."""
    steps, _, _ = read_steps(StoredRun(store).step_lines())
    return {line.step: line.worldGeneration for line in steps}


async def stopped_behind_its_fence(lead: Lead, *steps: int, at: str = "record") -> asyncio.Event:
    """Closes these steps and saves before step 3: the coordinator stores their lines, or `create`s the manifest behind them,
    once the event is set."""
    reached, goes_on = asyncio.Event(), asyncio.Event()
    lead.executor.before[at], lead.executor.held[at] = reached.set, goes_on
    await lead.close(*steps)
    lead.save(3, 0, 1)
    await reached.wait()
    return goes_on


async def saves_in(lead: Lead, world: int, **agents: int) -> None:
    """This coordinator leads the world, and saves before step 3."""
    lead.index()
    lead.arrive(**agents)
    await lead.world(world)
    await lead.saved(3)


@pytest.mark.parametrize("at", ["record", "create"])
async def test_step_lines_that_a_stopped_coordinator_writes_late_or_has_written_leave_those_of_the_next_world(
    tmp_path, at
):
    job = small(tmp_path)
    async with training(job) as first, leading(job, "two") as second:
        goes_on = await stopped_behind_its_fence(first, 0, 1, 2, at=at)
        await saves_in(second, 2, left=1)
        goes_on.set()
        await first.close(3, 4, 5)
        first.save(6, 0, 1)
        with pytest.raises(Stale, match="another coordinator has created generation 2"):
            await first.work
        assert worlds(second.store) == {0: 2, 1: 2, 2: 2}


async def test_step_lines_that_a_stopped_coordinator_writes_late_leave_those_of_one_that_adopted_its_world(tmp_path):
    job = small(tmp_path)
    async with training(job) as first, leading(job, "two") as second:
        await first.close(0)
        first.state.history.most_unsaved = 1
        await first.until(lambda: first.keys("steps/"))
        first.state.history.most_unsaved = 1024
        goes_on = await stopped_behind_its_fence(first, 1, 2)
        await saves_in(second, 1, generation=1)
        stored = second.store.get(steps_key(3, 1))
        goes_on.set()
        await first.until(lambda: first.state.manifest)
        assert second.store.get(steps_key(3, 1)) == stored
        assert worlds(second.store) == {0: 1, 1: 1, 2: 1}
