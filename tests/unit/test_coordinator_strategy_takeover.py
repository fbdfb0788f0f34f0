"""A new coordinator of a job of mode Auto goes by what its world was made with, and chooses only for a new world."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.layout import Device, Layout, shaped_layout
from coxswain.live import Held
from coxswain.plan.strategy.choose import choose
from coxswain.plan.strategy.values import Machine, Strategy
from coxswain_coordinator.planning import strategies
from coxswain_coordinator.planning.strategies import Strategies
from tests.unit.coordinator_lead import Lead, begun, leading, register, training
from tests.unit.coordinator_samples import agents
from tests.unit.test_coordinator_strategy import auto, log_of, settle

pytestmark = pytest.mark.looptime

FIRST = "log/strategies/00000000.json.zst"
ONE, TWO = (replace(agent, generation=1) for agent in agents(2))


def other(machine: Machine, *of: Any) -> Strategy:
    """What is chosen where the lengths of the mix speak for stages by now."""
    found = choose(machine, *of)
    return next((replace(found, chosen=a) for a in found.alternatives if a.summary == "1 x tp1pp2"), found)


def refused(machine: Machine, *of: Any) -> Strategy:
    """A model that one trainer cannot hold."""
    if len(machine.trainers) == 1:
        raise Refused("NoStrategy", "no layout of 1 devices fits")
    return choose(machine, *of)


@asynccontextmanager
async def replaced(folder: Path) -> AsyncIterator[Lead]:
    """A second coordinator of a job of two trainers that has a checkpoint of step 3."""
    job = auto(folder)
    async with training(job) as lead:
        await lead.saved(3)
    async with leading(job, "two") as lead:
        lead.index()
        yield lead


@pytest.mark.parametrize("chooses", [choose, other, refused])
async def test_a_world_goes_on_whatever_would_be_chosen_for_the_trainers_that_register_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chooses: Any
) -> None:
    async with replaced(tmp_path) as lead:
        monkeypatch.setattr(strategies, "choose", chooses)
        register(lead, ONE)
        await asyncio.sleep(1)
        assert (lead.state.finished, lead.state.generation) == (None, 0)
        register(lead, TWO)
        await begun(lead, 1)
        assert lead.state.session.adopted
        assert lead.state.strategy.record == log_of(lead.job).last_strategy()
        assert lead.state.ladder.job == lead.state.strategy.job != lead.job
        assert lead.keys("log/strategies/") == [FIRST]


async def test_with_a_trainer_gone_for_good_the_next_world_goes_on_from_what_the_other_holds(tmp_path: Path) -> None:
    async with replaced(tmp_path) as lead:
        register(lead, replace(agents(1)[0], left=1, held=(Held(0, 1, 0, 3, "", (1,)),)))
        await begun(lead, 2)
        assert lead.state.session.record.live.step == 3
        assert lead.state.session.record.trainers == ("pod-0",)
        assert lead.state.strategy.record.devices == (1,)


async def test_a_world_without_a_record_of_its_devices_is_not_taken_over(tmp_path: Path) -> None:
    async with replaced(tmp_path) as lead:
        lead.store.delete(FIRST)
        register(lead, ONE, TWO)
        await begun(lead, 2)
        assert lead.keys("log/takeovers/") == []


def test_behind_a_layout_is_the_newest_record_of_its_devices(tmp_path: Path) -> None:
    """Trainers may be missing between others, and devices may be on standby."""
    job = auto(tmp_path)
    for devices in ((1, 2), (1, 1), (1, 2), (1,)):
        settle(job, devices)
    found = Strategies(log_of(job), "two")
    (shape,) = found.behind(Layout((), (Device(0, 0),))).strategy.chosen.replicas
    mine = shaped_layout([Device(0, 0), Device(2, 0), Device(2, 1)], (shape,))
    assert len(mine.standby) == 2
    assert found.behind(mine).number == 2
    assert found.behind(Layout((), (Device(0, 0), Device(0, 1)))) is None
