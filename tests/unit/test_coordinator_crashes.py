"""Kills one process, or all, before, during and after every write of a job.

Each crash is a run of its own: the real coordinator over a real folder, members as tasks, virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import looptime
import msgspec
import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import CheckpointConfig, JobConfig, MixConfig
from coxswain.planlog import MembershipSegment, steps_key
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import make_job, make_source, stored_steps
from tests.unit.crash_points import MOMENTS, Crash, Moment
from tests.unit.crash_simulation import Simulation

pytestmark = pytest.mark.timeout(240)

STEPS = 10
DOUBLE = 60
STOP = 2.0  # virtual seconds: in the sixth step


def job_in(folder: Path, every: int) -> JobConfig:
    checkpoint = CheckpointConfig(uri=f"file://{folder}/store", every_steps=every, keep_last=2)
    return make_job(folder, stop_steps=STEPS, checkpoint=checkpoint)


@dataclass
class End:
    """What a run leaves. It must be the same whatever was killed."""

    report: tuple[Any, ...]
    steps: dict[int, tuple[Any, ...]]  # of steps.jsonl: the last line of a step counts
    history: list[tuple[Any, ...]]  # of the store
    memberships: list[MembershipSegment]
    manifests: list[tuple[Any, ...]]  # a shard's name is its digest: equal names mean equal parameters
    orphans: set[str]


def facts(line: wire.StepLine) -> tuple[Any, ...]:
    return line.step, line.stream_digest, line.delivered_digest, line.loss, line.tokens


def lines(data: bytes) -> list[wire.StepLine]:
    return [msgspec.json.decode(line, type=wire.StepLine) for line in data.splitlines()]


def end_of(simulation: Simulation, report: wire.JobReport) -> End:
    """Reads the result from the folder alone."""
    store = open_store(simulation.job.checkpoint.uri)
    log = PlanLog(store)
    manifests = [msgspec.json.decode(store.get(o.path), type=wire.CheckpointManifest) for o in store.list("manifests/")]
    named = {shard.key for manifest in manifests for shard in manifest.shards}
    return End(
        report=(report.phase, report.reason, report.step, report.checkpoint_step, report.fault),
        steps={line.step: facts(line) for line in lines((simulation.folder / "steps.jsonl").read_bytes())},
        history=list(map(facts, stored_steps(store))),
        memberships=[log.membership(number) for number, _ in enumerate(store.list("log/membership/"))],
        manifests=[(m.step, m.cursor, m.stream_digest, m.tokens, m.shards) for m in manifests],
        orphans={o.path for o in store.list("shards/")} - named,
    )


def play(
    folder: Path,
    crashes: dict[int, Crash],
    *,
    stop_at: float | None = None,
    every: int = 3,
    edited: MixConfig | None = None,
) -> tuple[Simulation, End]:
    """Runs a simulation in its own loop, which fixes the order of events."""
    folder.mkdir(exist_ok=True)
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=0, noop_cycles=0)) as runner:
        return runner.run(_play(Simulation(job_in(folder, every), folder, crashes, stop_at, edited)))


async def _play(simulation: Simulation) -> tuple[Simulation, End]:
    try:
        return simulation, end_of(simulation, await simulation.play())
    except BaseException as error:
        error.add_note(f"{simulation.fate.crashes}\n" + "\n".join(simulation.fate.writes))
        raise


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> tuple[Simulation, End]:
    """A run without crashes."""
    simulation, end = play(tmp_path_factory.mktemp("calm"), {})
    assert end.report == ("Completed", "StopReached", STEPS, STEPS, None)
    assert [step for step, *_ in end.history] == list(range(STEPS))
    assert [step for step, *_ in end.manifests] == [9, 10]
    assert not end.orphans
    return simulation, end


def points(simulation: Simulation, writer: str) -> list[int]:
    return [n for n, what in enumerate(simulation.fate.writes) if what.startswith(writer)]


IN_TURN: tuple[Moment, ...] = ("amid", "after")
"""A crash before a write finds what one after the write before it finds."""

# The quick tier crashes once at each write, the slow tier in each way.
TRIED = [pytest.param(IN_TURN, id="in-turn"), *(pytest.param((m,), id=m, marks=pytest.mark.slow) for m in MOMENTS)]


# An outage kills the coordinator with all others. How far apart the writes are at which it happens.
KILLED = [
    pytest.param(False, 1, id="coordinator", marks=pytest.mark.slow),
    pytest.param(True, 1, id="all", marks=pytest.mark.slow),
    pytest.param(True, 4, id="all, at some writes"),
]


def at(moments: Sequence[Moment], n: int) -> Moment:
    return moments[n % len(moments)]


def test_there_are_more_than_three_hundred_crashes_to_try(calm):
    coordinator, workers = len(points(calm[0], "coordinator")), len(points(calm[0], "worker"))
    assert len(MOMENTS) * (2 * coordinator + 2 * workers) + DOUBLE > 300, calm[0].fate.writes


@pytest.mark.parametrize("moments", TRIED)
def test_a_coordinator_that_is_killed_at_any_write_costs_no_step_and_no_worker(tmp_path, calm, moments):
    for n in points(calm[0], "coordinator"):
        simulation, end = play(tmp_path / str(n), {n: Crash(at(moments, n))})
        assert simulation.fate.struck == [n]
        assert end == calm[1], calm[0].fate.writes[n]
        assert set(simulation.members.computed.values()) == {1}, calm[0].fate.writes[n]


@pytest.mark.parametrize("moments", TRIED)
def test_an_outage_at_any_write_costs_what_no_checkpoint_holds(tmp_path, calm, moments):
    for n in range(len(calm[0].fate.writes)):
        simulation, end = play(tmp_path / str(n), {n: Crash(at(moments, n), outage=True)})
        assert simulation.fate.struck == [n]
        assert end == calm[1], calm[0].fate.writes[n]


@pytest.mark.parametrize("moments", TRIED)
def test_a_worker_that_is_killed_at_any_write_costs_a_generation(tmp_path, calm, moments):
    for n in points(calm[0], "worker"):
        simulation, end = play(tmp_path / str(n), {n: Crash(at(moments, n))})
        assert (simulation.fate.struck, simulation.starts) == ([n], 1)
        assert end == calm[1], calm[0].fate.writes[n]


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] * (s >= 3)) for s in range(DOUBLE // 10)])
def test_two_crashes_in_one_run_lead_to_the_same_end(tmp_path, calm, seed):
    draw = random.Random(seed)
    for n in range(10):
        first, second = sorted(draw.sample(range(len(calm[0].fate.writes) + 8), 2))
        crashes = {at: Crash(draw.choice(MOMENTS), draw.random() < 0.3) for at in (first, second)}
        _, end = play(tmp_path / str(n), crashes)
        assert end == calm[1], crashes


@pytest.mark.parametrize("moments", TRIED)
def test_a_stop_and_a_crash_at_the_same_time_end_in_a_checkpoint_from_which_the_job_resumes(tmp_path, calm, moments):
    quiet, _ = play(tmp_path / "quiet", {}, stop_at=STOP)
    for n in range(quiet.fate.asked, len(quiet.fate.writes)):
        simulation, end = play(tmp_path / str(n), {n: Crash(at(moments, n))}, stop_at=STOP)
        assert (simulation.fate.struck, end.report[0]) == ([n], "Suspended"), quiet.fate.writes[n]
        if quiet.fate.writes[n].startswith("coordinator"):
            assert set(simulation.members.computed.values()) == {1}, quiet.fate.writes[n]
        _, end = play(tmp_path / str(n), {})
        assert (end.steps, end.memberships) == (calm[1].steps, calm[1].memberships), quiet.fate.writes[n]
        assert sorted(set(end.history)) == calm[1].history


@pytest.mark.parametrize(("outage", "apart"), KILLED)
def test_an_edit_of_the_mix_gives_the_same_steps_whatever_is_killed_at_any_write(tmp_path, calm, outage, apart):
    edited = replace(job_in(tmp_path, 3).mix, sources=(make_source("code", 0), make_source("docs", 1)))
    quiet, expected = play(tmp_path / "quiet", {}, edited=edited)
    assert [(m.segment, m.mix) for m in expected.memberships] == [(0, 0), (1, 1)]
    assert expected.memberships[0] == calm[1].memberships[0]
    assert {s.source for m in expected.memberships[1].memberships for s in m.sequences} == {"docs"}
    hit = points(quiet, "") if outage else points(quiet, "coordinator")
    for n in hit[::apart]:
        simulation, end = play(tmp_path / str(n), {n: Crash(MOMENTS[n % len(MOMENTS)], outage)}, edited=edited)
        assert (simulation.fate.struck, end) == ([n], expected), quiet.fate.writes[n]


@pytest.mark.parametrize(("outage", "apart"), KILLED)
def test_a_run_without_checkpoints_keeps_its_history_in_parts_and_loses_none(tmp_path, calm, outage, apart):
    quiet, expected = play(tmp_path / "quiet", {}, every=0)
    assert next(what for what in quiet.fate.writes if "steps/" in what).endswith(steps_key(4, 1))
    assert expected.history == calm[1].history
    for n in points(quiet, "coordinator")[::apart]:
        _, end = play(tmp_path / str(n), {n: Crash("before", outage)}, every=0)
        assert end == expected, quiet.fate.writes[n]
