"""A coordinator that is stopped for a while, as by SIGSTOP, gives the others the time to arrive that they had before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import Lead, begun, holds, led_again, register, suspend, training
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime

PAUSE = 30.0


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the loop's clock go on while nothing runs: what was to happen meanwhile happens at once behind it."""

    def pause() -> None:
        loop = asyncio.get_running_loop()
        plain = loop.time
        monkeypatch.setattr(loop, "time", lambda: plain() + PAUSE)

    return pause


async def lost(lead: Lead) -> None:
    await lead.close(0, 1)
    lead.state.mark_world_lost("the network broke")
    register(lead, holds(lead, 2)[0])


@pytest.mark.parametrize("before", [0.5, 2.5])
async def test_a_trainer_that_registers_right_behind_a_pause_of_the_coordinator_is_in_the_next_world(
    tmp_path: Path, pause: Callable[[], None], before: float
) -> None:
    """Before, the world was formed without it, and again once it was there."""
    async with training(make_job(tmp_path, min_trainers=1)) as lead:
        await lost(lead)
        await asyncio.sleep(before)
        pause()
        await asyncio.sleep(0.2)
        register(lead, holds(lead, 2)[1])
        await begun(lead, 2)
        assert lead.state.session is not None
        assert len(lead.state.session.world.seats) == 2


async def test_a_trainer_that_stays_away_behind_a_pause_is_planned_around_after_the_rest_of_its_time(
    tmp_path: Path, pause: Callable[[], None], looptime
) -> None:
    async with training(make_job(tmp_path, min_trainers=1)) as lead:
        await lost(lead)
        await asyncio.sleep(1.5)
        pause()
        began = float(looptime)
        await begun(lead, 2)
        assert lead.state.session is not None
        assert len(lead.state.session.world.seats) == 1
        assert 1.0 <= float(looptime) - began <= 4.0


async def test_a_pause_is_no_silence_of_workers_that_leave_a_lost_world(
    tmp_path: Path, pause: Callable[[], None], looptime
) -> None:
    async with training(make_job(tmp_path, min_trainers=1)) as lead:
        await lost(lead)
        register(lead, replace(agents(2)[1], generation=1))
        await asyncio.sleep(5)
        assert lead.state.session is not None
        lead.state.session.last_heard = {1: time.monotonic() - 31}  # this process was stopped for 30 s of these
        pause()
        await asyncio.sleep(20)
        assert lead.state.generation == 1
        register(lead, holds(lead, 2)[1])
        await begun(lead, 2)


async def test_a_stop_waits_for_a_running_world_also_behind_a_pause(tmp_path: Path, pause: Callable[[], None]) -> None:
    """Before, the job ended at once, and the steps since the last checkpoint were lost."""
    async with led_again(tmp_path) as lead:
        suspend(lead)
        await asyncio.sleep(5)
        pause()
        await asyncio.sleep(0.2)
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
