"""Kills workers, trainers and coordinators at every write and message of a change of world; workers keep living state.

Each crash is a run of its own: the real coordinator over a real folder, real agents, virtual time.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import looptime
import msgspec
import pytest

from coxswain import wire
from coxswain.config import CheckpointConfig, EvaluationConfig, RecoveryConfig
from coxswain.layout import Device, Layout, uniform_layout
from coxswain_link.store import open_store
from tests.draws import drawn_below
from tests.unit.coordinator_fakes import make_job, stored_steps
from tests.unit.crash_change import RIVALS, ChangeSimulation, Order, Victims

pytestmark = pytest.mark.timeout(600)

STEPS = 10
WHEN = 2.0  # virtual seconds: in the fifth step
WINDOW = 64  # points: to the second step behind the change
NOT_EVALUATED = EvaluationConfig()
APART = 9  # points that a run of the slow tier tries of a change: each ninth
EVERY = 4  # steps between checkpoints
CHANGES: dict[str, Order] = {
    "a lost worker": (WHEN, lambda job: job.kill("worker-1")),
    "a lost trainer": (WHEN, lambda job: job.kill("trainer-1")),
    "a new coordinator": (WHEN, lambda job: job.kill("coordinator")),
    "no change": (WHEN, lambda job: None),
    "a smaller size": (WHEN, lambda job: job.state.resize(2)),
    "another layout": (WHEN, lambda job: job.state.request_layout(pipeline(), "a test asks")),
}
VICTIMS: Sequence[Victims] = (
    ("worker-0",), ("worker-2",), ("trainer-0",), ("trainer-1",), ("coordinator",), ("coordinator", "worker-0"),
)  # fmt: skip


def pipeline() -> Layout:
    return uniform_layout([Device(0, 0), Device(1, 0), Device(2, 0)], 2, tensor=1, pipeline=2)


@dataclass
class End:
    """What a run leaves. `steps` must be the same whatever was killed."""

    phase: str
    steps: dict[int, tuple[Any, ...]]  # of steps.jsonl: the last line of a step counts
    history: list[tuple[Any, ...]]
    again: int  # steps that were computed more than once
    restarts: Counter[str]  # of workers, by trainer
    simulation: ChangeSimulation


def facts(data: bytes) -> list[tuple[Any, ...]]:
    lines = [msgspec.json.decode(line, type=wire.StepLine) for line in data.splitlines()]
    return [(s.step, s.stream_digest, s.delivered_digest, s.loss, s.gradient_norm, s.tokens) for s in lines]


def play(
    folder: Path,
    orders: Sequence[Order],
    strikes: Mapping[int, Victims],
    copies: bool = True,
    again: Collection[int] = (),
    evaluation: EvaluationConfig = NOT_EVALUATED,
    **drawn: Any,
) -> End:
    folder.mkdir(exist_ok=True)
    checkpoint = CheckpointConfig(uri=f"file://{folder}/store", every_steps=EVERY, keep_last=2)
    job = make_job(
        folder,
        stop_steps=STEPS,
        checkpoint=checkpoint,
        trainers=3,
        min_trainers=2,
        recovery=RecoveryConfig(copies=copies),
        evaluation=evaluation,
    )
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=0, noop_cycles=0)) as runner:
        return runner.run(_play(ChangeSimulation(job, folder, orders, strikes, again, **drawn)))


async def _play(simulation: ChangeSimulation) -> End:
    try:
        report = await simulation.play()
        assert not simulation.members.faults
        assert not simulation.ledger.wrong
    except BaseException as error:
        error.add_note("\n".join(f"{n} {what}" for n, what in enumerate(simulation.fate.points)))
        raise
    store, lines = open_store(simulation.job.checkpoint.uri), simulation.folder / "steps.jsonl"
    computed = Counter[int]()
    for (_, step), times in simulation.members.computed.items():
        computed[step] = max(computed[step], times)
    return End(
        phase=report.phase,
        steps={line[0]: line for line in facts(lines.read_bytes() if lines.exists() else b"")},
        history=facts(b"\n".join(map(msgspec.json.encode, stored_steps(store)))),
        again=sum(times > 1 for times in computed.values()),
        restarts=Counter(
            {f"trainer-{i}": max(0, len(made.made) - 1) for i, (_, made) in simulation.members.agents.items()}
        ),
        simulation=simulation,
    )


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> End:
    """A run without a change."""
    end = play(tmp_path_factory.mktemp("calm"), [], {})
    assert (end.phase, [step for step, *_ in end.history]) == ("Completed", list(range(STEPS)))
    assert (end.again, end.restarts.total()) == (0, 0)
    return end


def window(end: End, stride: int) -> range:
    """Points from the change on."""
    first = end.simulation.began[WHEN]
    return range(first, min(first + WINDOW, len(end.simulation.fate.points)), stride)


def tiers(quick: int) -> list[Any]:
    """How far apart the tried points are."""
    return [pytest.param(quick, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("stride", tiers(47))
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_with_copies_a_kill_at_any_point_costs_one_step_at_most_and_no_other_worker(tmp_path, calm, victims, stride):
    quiet = play(tmp_path / "quiet", [CHANGES["no change"]], {})
    killed = {f"trainer-{name[-1]}" for name in victims if name.startswith("worker")}
    for n in window(quiet, stride):
        end = play(tmp_path / str(n), [CHANGES["no change"]], {n: victims})
        assert (end.phase, end.steps, end.history) == (calm.phase, calm.steps, calm.history), (
            quiet.simulation.fate.points[n]
        )
        assert end.again <= 1, quiet.simulation.fate.points[n]
        assert {name for name, times in end.restarts.items() if times} == killed, quiet.simulation.fate.points[n]


@pytest.mark.parametrize("stride", tiers(47))
def test_without_copies_a_lost_worker_costs_what_no_checkpoint_holds(tmp_path, calm, stride):
    quiet = play(tmp_path / "quiet", [CHANGES["no change"]], {}, copies=False)
    for n in window(quiet, stride):
        end = play(tmp_path / str(n), [CHANGES["no change"]], {n: ("worker-0",)}, copies=False)
        assert (end.phase, end.steps) == (calm.phase, calm.steps), quiet.simulation.fate.points[n]
        assert end.again <= EVERY
        checkpoint = [e.message for e in end.simulation.state.events.latest() if e.reason == "WorkerRestarted"]
        assert len(checkpoint) == 1
        assert int(checkpoint[0].partition("from step ")[2].partition(":")[0]) % EVERY == 0, checkpoint


EVERY_CHANGE = [name for name in CHANGES if name != "no change"]


def check_kills(
    folder: Path, calm: End, change: str, copies: bool, every: Sequence[Victims], points: Callable[[End], Iterable[int]]
) -> None:
    """Whatever is killed at one of these points of a change, the same steps follow."""
    quiet = play(folder / "quiet", [CHANGES[change]], {}, copies)
    assert quiet.steps == calm.steps
    for victims in every:
        for n in points(quiet):
            end = play(folder / f"{n}-{'+'.join(victims)}", [CHANGES[change]], {n: victims}, copies)
            assert (end.phase, end.steps) == (calm.phase, calm.steps), quiet.simulation.fate.points[n]
            assert sorted(set(end.history)) == calm.history  # a step that is done again has two lines


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "none"])
@pytest.mark.parametrize("change", EVERY_CHANGE)
def test_a_kill_at_some_points_of_a_change_leads_to_the_same_steps(tmp_path, calm, change, copies):
    victims = VICTIMS[len(change) % len(VICTIMS)]
    check_kills(tmp_path, calm, change, copies, [victims], lambda quiet: window(quiet, 61))


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False], ids=["copies", "none"])
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
@pytest.mark.parametrize("change", EVERY_CHANGE)
def test_a_kill_at_any_point_of_a_change_leads_to_the_same_steps(tmp_path, calm, change, victims, copies):
    """Of 3,840 runs one of so many, others in each run of the slow tier."""
    check_kills(tmp_path, calm, change, copies, [victims], lambda quiet: window(quiet, 1)[drawn_below(APART) :: APART])


@pytest.mark.parametrize("change", CHANGES)
def test_a_second_coordinator_at_some_points_of_a_change_leads_to_the_same_steps(tmp_path, calm, change):
    rival = list(RIVALS)[(list(CHANGES).index(change) + 2) % len(RIVALS)]
    check_kills(tmp_path, calm, change, True, [(rival,)], lambda quiet: window(quiet, 30))


@pytest.mark.slow
@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_second_coordinator_at_any_point_of_a_change_leads_to_the_same_steps(tmp_path, calm, change, rival):
    check_kills(tmp_path, calm, change, True, [(rival,)], lambda quiet: window(quiet, 1)[drawn_below(6) :: 6])


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "none"])
@pytest.mark.parametrize("change", EVERY_CHANGE)
def test_messages_that_arrive_once_more_in_the_next_world_change_no_step(tmp_path, calm, change, copies):
    end = play(tmp_path / "all", [CHANGES[change]], {}, copies, again=range(10_000))
    assert (end.phase, end.steps) == (calm.phase, calm.steps)
    assert sorted(set(end.history)) == calm.history


AGAIN: dict[str, tuple[float, Sequence[str]]] = {
    "a worker": (1.1, ("worker-1",)),
    "a trainer": (0.4, ("trainer-1",)),
    "two trainers in turn": (0.4, ("trainer-0", "trainer-1")),
    "a trainer and the coordinator in turn": (1.1, ("trainer-1", "coordinator")),
}


def struck(seconds: float, victims: Sequence[str]) -> list[Order]:
    """A dozen kills, so far apart."""
    kills = [functools.partial(ChangeSimulation.kill, victim=victims[n % len(victims)]) for n in range(12)]
    return [(1.0 + seconds * n, kill) for n, kill in enumerate(kills)]


@pytest.mark.parametrize("name", AGAIN)
def test_what_is_lost_again_and_again_costs_no_step_of_the_run(tmp_path, calm, name):
    end = play(tmp_path / "again", struck(*AGAIN[name]), {})
    assert (end.phase, end.steps) == (calm.phase, calm.steps)
    assert sorted(set(end.history)) == calm.history


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "none"])
def test_a_worker_that_crashes_in_each_world_before_a_new_step_ends_the_coordinator_in_the_fifth(
    tmp_path, calm, copies
):
    end = play(tmp_path / "loop", struck(0.4, ("worker-1",)), {}, copies)
    finished = end.simulation.life.run.finished
    assert end.phase == "Failed" and end.steps.items() < calm.steps.items()
    assert (finished.exit_code, finished.reason) == (1, "WorkerCrashLoop"), "a restart that the operator counts"
