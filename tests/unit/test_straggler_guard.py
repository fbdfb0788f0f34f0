"""Errors in what watches slow devices: they are logged once, and training goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.config import StragglerConfig
from coxswain.ladder.decide import decide
from coxswain_coordinator.stragglers.guard import Guard
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import ONSET, begun, holds, register, run_steps, training
from tests.unit.ladder_samples import Job, at_once, nothing, offered

pytestmark = pytest.mark.looptime


async def test_a_planner_that_fails_leaves_training_alone_and_says_so_once(tmp_path, caplog):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    j = Job(tmp_path, planner=fails)
    await j.run(20)
    j.factor = 3.0
    await j.run(20)
    assert (j.asked, j.plans) == ([], 2)
    lines = [r.getMessage() for r in caplog.records if "no layout is planned" in r.getMessage()]
    assert len(lines) == 1 and lines[0].endswith("ZeroDivisionError: of seconds")


@pytest.mark.parametrize(
    "broken",
    ["coxswain_coordinator.stragglers.ladder.decide", "coxswain.stragglers.detector.Detector.observe",
     "coxswain_coordinator.stragglers.watch.StragglerWatch.planned"],
)  # fmt: skip
async def test_an_error_in_what_watches_slow_devices_is_logged_once_and_training_goes_on(
    tmp_path, monkeypatch, caplog, broken
):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    job = make_job(tmp_path, stop_steps=64, stragglers=StragglerConfig(action="Migrate"))
    async with training(job) as lead:
        ladder, session = lead.state.ladder, lead.state.session
        ladder.beside, ladder.planner = at_once, offered
        await run_steps(lead, ONSET)
        monkeypatch.setattr(broken, fails)
        await run_steps(lead, 20, 3.0)
        assert session.book.open == ONSET + 20 and not lead.work.done()
        assert session.move is None and lead.state.failures == 0
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert lines == [
        "slow devices: ZeroDivisionError: of seconds; nothing is done about them in this step, and training goes on"
    ]


def test_a_guarded_call_says_whether_it_went_well_and_errors_of_two_lines_are_two(caplog):
    def inner(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError("one")
        if number == 2:
            raise ZeroDivisionError("two")

    guarded = Guard()
    found = [guarded(lambda n=number: inner(n)) for number in (0, 1, 2, 1, 2)]
    assert found == [True, False, False, False, False]
    assert [r.getMessage().split("; ")[0] for r in caplog.records] == [
        "slow devices: ZeroDivisionError: one", "slow devices: ZeroDivisionError: two",
    ]  # fmt: skip


async def test_an_error_as_the_ladder_decides_on_a_plan_leaves_it_able_to_decide_later(tmp_path, monkeypatch, caplog):
    def fails(view):
        if view.options:
            raise ZeroDivisionError("of seconds")
        return decide(view)

    j = Job(tmp_path)
    monkeypatch.setattr("coxswain_coordinator.stragglers.ladder.decide", fails)
    await j.run(1)
    monkeypatch.undo()
    await j.run(20)
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(j.asked) == 1 and len(said) == 1 and said[0].startswith("slow devices: ZeroDivisionError: of seconds")


@pytest.mark.parametrize("broken", ["watch.places_of", "watch.replica_speeds", "ladder.kept_devices"])
async def test_an_error_as_a_world_is_entered_leaves_no_speeds_of_the_world_before(tmp_path, monkeypatch, broken):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    job = make_job(tmp_path, stop_steps=64, stragglers=StragglerConfig(action="Rebalance"))
    job = replace(job, stragglers=StragglerConfig(action="Migrate" if "ladder" in broken else "Rebalance"))
    async with training(job) as lead:
        await run_steps(lead, ONSET)
        lead.state.ladder.beside, lead.state.ladder.planner = at_once, nothing
        while not lead.state.stragglers.speeds:
            await run_steps(lead, 1, 3.0)
        step = lead.state.session.book.open
        lead.state.mark_world_lost("rank 1 ended")
        monkeypatch.setattr(f"coxswain_coordinator.stragglers.{broken}", fails)
        register(lead, *holds(lead, step))
        await begun(lead, 2)
        await run_steps(lead, 2)
        assert not lead.work.done() and lead.state.session.book.open == step + 2
        assert "ladder" in broken or not lead.state.stragglers.speeds
