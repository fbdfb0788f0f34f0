"""Planners in processes: several steps at once, late ones by the fall-back, and no process that stays."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig, ParallelConfig
from coxswain.cost.constants import load_hardware
from coxswain.errors import Refused, Retryable
from coxswain.layout import Device, uniform_layout
from coxswain.names import EVENT_REASONS
from coxswain.plan import planners
from coxswain.planlog import PlacementSegment
from coxswain.wire import StepLine
from coxswain_coordinator.planning import committer as committing
from coxswain_coordinator.planning import placers as placing
from coxswain_coordinator.planning import solvers as solving
from coxswain_coordinator.planning.committer import LOOK_AHEAD_SECONDS, patience
from coxswain_coordinator.planning.late_plans import LatePlans, reason_of
from coxswain_coordinator.planning.placers import Missing, Placed, in_processes, in_turn, place_step
from coxswain_coordinator.planning.solvers import Failed, Solved, Solvers
from coxswain_coordinator.world import look_ahead
from tests.unit import solver_doubles
from tests.unit.coordinator_fakes import cluster, make_job
from tests.unit.solver_doubles import HANGS, HEAVY, KILLED, RAISES, REFUSES, slow
from tests.unit.test_coordinator_committer import commit, committer

LAYOUT = uniform_layout([Device(0, r) for r in range(2)], layers=2)


def slow_job(folder: Path, **changes: object) -> JobConfig:
    job = make_job(folder, **changes)
    return replace(job, name=str(folder), parallelism=replace(job.parallelism, balance="FlexSP"))


@pytest.fixture(scope="module")
def solvers():
    made = Solvers(slow, 2)
    yield made
    made.close()


def place(solvers: Solvers, folder: Path, *steps: list[int], is_late=lambda: False) -> dict[int, Solved | Failed]:
    return solvers.place(dict(enumerate(steps)), LAYOUT, slow_job(folder), is_late)


def gone(pid: int) -> bool:
    """Whether the process ends within a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


# --- processes -------------------------------------------------------------------------------------------------------


def test_plans_of_processes_are_those_of_the_planner(solvers, tmp_path):
    found = place(solvers, tmp_path, [40, 300], [7], [256, 256])
    assert [found[s].placement for s in range(3)] == [
        slow(lengths, LAYOUT, slow_job(tmp_path)) for lengths in ([40, 300], [7], [256, 256])
    ]
    assert {answer.placement.balance for answer in found.values()} == {"slow"}


def test_several_steps_are_placed_at_once(tmp_path):
    at_once = Solvers(solver_doubles.together, 2)
    end = time.monotonic() + 60
    found = at_once.place({0: [5], 1: [6]}, LAYOUT, slow_job(tmp_path), lambda: time.monotonic() > end)
    at_once.close()
    assert sorted(found) == [0, 1]


@pytest.mark.parametrize(("cores", "asked", "processes"), [(1, 0, 1), (3, 0, 3), (64, 0, 8), (64, 2, 2)])
def test_there_are_as_many_processes_as_cores_and_steps_of_a_segment(monkeypatch, cores, asked, processes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert Solvers(slow, asked).most == processes


def test_plans_that_are_late_are_left_out_and_what_computed_them_is_killed(solvers, tmp_path):
    found = place(solvers, tmp_path, [HANGS], [8], is_late=(tmp_path / "hangs").exists)
    assert 0 not in found
    assert gone(int((tmp_path / "hangs").read_text()))
    assert isinstance(place(solvers, tmp_path, [8])[0], Solved)


@pytest.mark.parametrize(
    ("what", "why"),
    [(KILLED, "its process ended with -9"), (RAISES, "ValueError: no solution"), (HEAVY, "imported: []")],
)
def test_a_plan_that_fails_says_why_and_the_others_are_there(solvers, tmp_path, what, why):
    found = place(solvers, tmp_path, [what], [8], [9])
    assert found[0].why.endswith(why)
    assert isinstance(found[1], Solved)
    assert isinstance(found[2], Solved)


def test_a_step_that_does_not_fit_the_balance_is_placed_by_the_fall_back(solvers, tmp_path):
    placer = in_processes(solvers, slow, LAYOUT, slow_job(tmp_path), lambda _: None)
    found = placer({0: [REFUSES], 1: [8]}, lambda: False, ())
    assert [found.placements[s].balance for s in (0, 1)] == ["makespan", "slow"]
    assert [(m.step, m.fault) for m in found.missing] == [(0, "too long")]


@pytest.mark.parametrize("balance", sorted(set(planners.BALANCES) - {"makespan"}))
def test_no_balance_ends_a_job_whose_replicas_hold_the_longest_sequence(tmp_path, balance):
    """Three of four trainers, of which two hold a sequence of 2048: a mesh needs a divisor of three replicas."""
    job = make_job(tmp_path)
    job = replace(job, parallelism=replace(job.parallelism, balance=balance, tokens_per_replica=1024, max_degree=2))
    three = uniform_layout([Device(t, 0) for t in range(3)], layers=2)
    found = in_turn(place_step, three, job)({0: [2048, 40], 1: [40, 300]}, lambda: False, ())
    assert found.placements[1].balance == balance
    assert [(m.step, m.balance) for m in found.missing] == (
        [(0, balance)] if found.placements[0].balance == "makespan" else []
    )
    if balance in ("static", "wlb", "kk"):
        assert "a divisor of 3" in found.missing[0].fault


def test_a_sequence_that_no_replicas_hold_is_the_users_fault(solvers, tmp_path):
    with pytest.raises(Refused, match="hold only 512"):
        in_turn(place_step, LAYOUT, make_job(tmp_path))({0: [600]}, lambda: False, ())
    with pytest.raises(Refused, match="hold only 512") as caught:
        in_processes(solvers, slow, LAYOUT, slow_job(tmp_path), lambda _: None)({0: [600]}, lambda: False, ())
    assert caught.value.reason == "CapacityLost"


def test_a_coordinator_that_stops_does_not_wait_for_a_plan(tmp_path):
    closing = Solvers(slow, 1)

    def close() -> bool:
        """Never late: closes once the planner hangs."""
        if (tmp_path / "hangs").exists():
            threading.Thread(target=closing.close).start()
        return False

    with pytest.raises(Retryable, match="the coordinator stops"):
        place(closing, tmp_path, [HANGS], is_late=close)
    assert gone(int((tmp_path / "hangs").read_text()))


def test_plans_that_a_stop_cuts_short_are_no_failures_of_the_balance(tmp_path, monkeypatch):
    """Else the fall-back would place their steps, and the next coordinator read that from the log."""
    closing, plain = Solvers(slow, 2), solving.wait

    def closes(pipes, seconds):
        closing.close()
        return plain(pipes, seconds)

    monkeypatch.setattr(solving, "wait", closes)
    with pytest.raises(Retryable, match="the coordinator stops"):
        place(closing, tmp_path, [8], [9])


def test_no_planner_outlives_a_coordinator_that_is_killed(tmp_path):
    code = (
        f"from pathlib import Path; from tests.unit import solver_doubles as d; d.coordinate(Path({str(tmp_path)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as coordinator:
        end = time.monotonic() + 60
        while not (tmp_path / "hangs").exists():
            assert coordinator.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(coordinator.pid, signal.SIGKILL)
    assert gone(int((tmp_path / "hangs").read_text()))


# --- the fall-back ---------------------------------------------------------------------------------------------------


class Answers:
    """In the place of processes."""

    def __init__(self, found):
        self.found = found

    def place(self, steps, layout, job, is_late, speeds):
        return self.found


def test_the_fall_back_places_what_is_late_or_fails_and_the_placement_says_so(tmp_path):
    job, seconds = slow_job(tmp_path), []
    solved = slow([10], LAYOUT, job)
    placer = in_processes(Answers({0: Solved(solved, 2.5), 1: Failed("why")}), slow, LAYOUT, job, seconds.append)
    found = placer({0: [10], 1: [11], 2: [12]}, lambda: True, ())
    assert [found.placements[s].balance for s in range(3)] == ["slow", "makespan", "makespan"]
    expected = replace(job, parallelism=replace(job.parallelism, balance="Makespan"))
    assert found.placements[2] == place_step([12], LAYOUT, expected)
    assert [(m.step, m.balance, m.fault) for m in found.missing] == [(1, "FlexSP", "why"), (2, "FlexSP", "")]
    assert seconds == [2.5]


def test_the_fall_back_plans_for_the_speeds_that_the_balance_was_asked_with(tmp_path):
    job, speeds, asked = slow_job(tmp_path), (1.0, 0.5), []

    def refuses(lengths, layout, job, speeds):
        asked.append((job.parallelism.balance, speeds))
        if job.parallelism.balance == "FlexSP":
            raise Refused("CapacityLost", "too long")
        return place_step(lengths, layout, job, speeds)

    in_turn(refuses, LAYOUT, job)({0: [40]}, lambda: False, speeds)
    in_processes(Answers({}), refuses, LAYOUT, job, lambda _: None)({0: [40]}, lambda: True, speeds)
    assert asked == [("FlexSP", speeds), ("Makespan", speeds), ("Makespan", speeds)]


def test_what_is_wrong_with_the_job_is_not_left_to_the_fall_back(tmp_path):
    def refuses(lengths, layout, job, speeds):
        if job.parallelism.balance == "FlexSP":
            raise Refused("BadHardware", "no such device")
        return place_step(lengths, layout, job, speeds)

    with pytest.raises(Refused, match="no such device"):
        in_turn(refuses, LAYOUT, slow_job(tmp_path))({0: [40]}, lambda: False, ())


def test_a_late_plan_says_for_how_many_seconds_it_was_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "time", SimpleNamespace(monotonic=iter([10.0, 12.5]).__next__))
    placer = in_processes(Answers({}), slow, LAYOUT, slow_job(tmp_path), lambda _: None)
    assert [m.seconds for m in placer({0: [10], 1: [11]}, lambda: True, ()).missing] == [2.5, 2.5]


def test_a_job_with_a_profile_is_planned_by_it_whatever_its_policy_names(tmp_path):
    job = make_job(tmp_path)
    named = replace(job, parallelism=replace(job.parallelism, hardware="h100-80g"))
    by_profile = place_step([200, 100], LAYOUT, job, hardware=load_hardware("h100-80g"))
    assert by_profile == place_step([200, 100], LAYOUT, named)
    assert by_profile.makespan_seconds != place_step([200, 100], LAYOUT, job).makespan_seconds


@pytest.mark.parametrize(
    ("in_hand", "step_seconds", "started", "seconds"),
    [(0, 0.0, False, LOOK_AHEAD_SECONDS), (7, 10.0, True, 35.0), (29, 1.0, True, 14.5), (0, 10.0, True, 1.0)],
)  # fmt: skip
def test_planners_may_take_half_the_time_until_the_world_runs_out_of_plans(in_hand, step_seconds, started, seconds):
    assert patience(in_hand, step_seconds, started) == seconds


def test_late_plans_are_at_most_one_event_a_minute_that_counts_the_others():
    now = [1000.0]
    late = LatePlans(lambda: now[0])
    assert late.event(()) is None
    reason, message = late.event([Missing(12, "FlexSP", 30.04, ""), Missing(13, "FlexSP", 30.04, "")])
    assert reason == "PlanLate"
    assert message.startswith("step 12: balance FlexSP had no plan after 30.0 s")
    assert message.endswith("so it was for 1 more")
    for seconds in (0, 59):
        now[0] += seconds
        assert late.event([Missing(20, "FlexSP", 1, "")]) is None
    now[0] += 1
    reason, message = late.event([Missing(-1, "FlexSP", 1, "ValueError: no solution"), Missing(21, "FlexSP", 1, "")])
    assert reason == "PlanFailed"
    assert message == (
        "the evaluation: balance FlexSP failed (ValueError: no solution), so Makespan has placed it; so it was for 3 more"
    )


def late(*steps: int) -> list[Missing]:
    return [Missing(step, "FlexSP", 1, "") for step in steps]


@pytest.mark.parametrize("began", [0.0, 59.0, 1e9])
def test_the_first_late_plan_is_an_event_whatever_the_clock_says(began):
    assert LatePlans(lambda: began).event(late(0))


def test_a_clock_that_is_set_back_holds_back_no_event_of_late_plans():
    now = [1000.0]
    plans = LatePlans(lambda: now[0])
    assert plans.event(late(0))
    now[0] = 990.0
    assert plans.event(late(1))


def test_each_late_step_is_counted_in_one_event_alone():
    now = [0.0]
    plans = LatePlans(lambda: now[0])
    assert plans.event(late(0, 1, 2))[1].endswith("so it was for 2 more")
    now[0] = 10.0
    assert plans.event(late(3, 4)) is None
    now[0] = 60.0
    assert plans.event(late(5))[1].endswith("so it was for 2 more")
    now[0] = 120.0
    assert "more" not in plans.event(late(6))[1]


@pytest.mark.parametrize("fault", ["", "ValueError: no solution"])
def test_the_event_of_a_late_or_failed_plan_reaches_kubernetes(fault):
    """The operator publishes only reasons of its list."""
    assert reason_of(Missing(12, "FlexSP", 1, fault)) in EVENT_REASONS


# --- the plan log ----------------------------------------------------------------------------------------------------


def test_a_coordinator_that_restarts_keeps_what_was_late_before(tmp_path):
    first = committer(make_job(tmp_path))

    def partly_late(steps, is_late, speeds):
        placed = first.place(steps, is_late, speeds)
        named = {s: replace(p, balance="slow") if s % 2 else p for s, p in placed.placements.items()}
        return Placed(named, (Missing(0, "FlexSP", 1.0, ""),))

    def never(steps, is_late, speeds):
        raise AssertionError("placed again")

    one, again = (
        committing.Committer(first.job, first.log, first.mixes, first.stream, first.generation, placer)
        for placer in (partly_late, never)
    )
    [before], [after] = commit(one), commit(again)
    assert [p.balance for p in after.plans] == ["makespan", "slow"] * 4
    assert after.plans == before.plans
    assert (len(before.missing), after.missing) == (1, ())


def test_a_coordinator_that_restarts_places_only_the_steps_that_no_part_has(tmp_path):
    whole = committer(make_job(tmp_path / "whole"))
    [expected] = commit(whole)
    part = committer(make_job(tmp_path / "part"))
    [found] = commit(part, stop=3)
    asked = []

    def placer(steps, is_late, speeds):
        asked.extend(steps)
        return part.place(steps, is_late, speeds)

    [rest] = commit(committing.Committer(part.job, part.log, part.mixes, part.stream, part.generation, placer))
    assert (asked, rest.plans[:3]) == ([3, 4, 5, 6, 7], found.plans)
    assert [p.digest for p in rest.plans] == [p.digest for p in expected.plans]
    first, second = part.log.placement(1, 0, 0), part.log.placement(1, 0, 1)
    assert isinstance(second, PlacementSegment)
    assert (len(first.placements), second.first_step, part.log.placement(1, 0, 2)) == (3, 3, None)


# --- whole jobs ------------------------------------------------------------------------------------------------------


async def lines_of(job, folder, planner=place_step) -> list[StepLine]:
    async with cluster(job, folder, planner=planner) as c:
        assert (await c.play()).phase == "Completed"
        return [line for _, line in sorted(c.steps().items())]


async def test_a_job_whose_plans_are_late_goes_on_with_the_fall_back_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(look_ahead, "patience", lambda *_: 0.0)
    expected = await lines_of(make_job(tmp_path / "fast"), tmp_path / "fast")
    (tmp_path / "slow").mkdir()
    async with cluster(slow_job(tmp_path / "slow"), tmp_path / "slow", planner=slow) as c:
        report = await c.play()
        lines = [line for _, line in sorted(c.steps().items())]
        assert (
            'coxswain_planned_steps_total{balance="makespan"} 20.0' in c.coordinator.state.metrics.exposition().decode()
        )
    assert [line.stream_digest for line in lines] == [line.stream_digest for line in expected]
    assert {line.balance for line in lines} == {"makespan"}
    [event] = [event for event in report.events if event.reason == "PlanLate"]
    assert event.warning
    assert event.message.startswith("step 0: balance FlexSP had no plan after 0.0 s")


async def test_every_balance_delivers_the_same_tokens(tmp_path):
    """One job, whose steps are placed by one balance after another."""
    job = make_job(tmp_path / "all", parallelism=ParallelConfig(tokens_per_replica=128, max_degree=2))
    lines = await lines_of(job, tmp_path / "all", solver_doubles.one_after_another())
    assert {line.balance for line in lines} == set(planners.BALANCES)
    baseline = await lines_of(make_job(tmp_path / "one"), tmp_path / "one")
    assert [line.delivered_digest for line in lines] == [line.delivered_digest for line in baseline]
    assert [line.stream_digest for line in lines] == [line.stream_digest for line in baseline]


async def test_steps_close_while_the_next_plans_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(look_ahead, "patience", lambda *_: 60.0)
    async with cluster(slow_job(tmp_path), tmp_path, planner=solver_doubles.later) as c:
        playing = asyncio.ensure_future(c.play())
        assert await c.coordinator.wait_until(lambda report: report.step >= 5, 60)
        (tmp_path / "go").touch()
        assert (await playing).phase == "Completed"
        assert {line.balance for line in c.steps().values()} == {"slow"}
