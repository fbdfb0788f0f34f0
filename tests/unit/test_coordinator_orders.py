"""Drawn orders of messages, losses and decisions: whatever the order, the same steps come of it, each once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coxswain import wire
from tests.draws import draws
from tests.unit.crash_change import RIVALS, ChangeSimulation, Order
from tests.unit.crash_living import PLACES
from tests.unit.crash_troubles import Rule, Trouble
from tests.unit.test_living_crashes import STEPS, End, pipeline, play

pytestmark = pytest.mark.timeout(600)

examples = settings(max_examples=draws(16, 200))

LATE = st.integers(1, 24).map(lambda n: n / 32)  # seconds
TIMES = st.integers(4, 70).map(lambda n: n / 16)  # virtual seconds, from the first world to the last steps
WAIT = 3.0  # seconds that a call is held
WORKERS, TRAINERS = [f"worker-{n}" for n in range(3)], [f"trainer-{n}" for n in range(3)]
CALLS = [
    *(("/v1/steps", caller) for caller in WORKERS * 4),
    *(("/v1/saved", caller) for caller in WORKERS * 2),
    *(("/v1/exits", caller) for caller in TRAINERS),
    *(("/v1/stop", "") for _ in range(4)),
    *((path, caller) for path in ("/v1/reports", "/v1/plans", "/v1/rendezvous", "/v1/beats") for caller in WORKERS),
    *(("/v1/register", caller) for caller in TRAINERS),
    ("/v1/served", ""),
]  # those that matter most are drawn most
HARMLESS = st.one_of(
    st.builds(Trouble, request=LATE),
    st.builds(Trouble, request=st.just(WAIT), until=st.sampled_from(["/v1/stop", "/v1/saved"])),
    st.builds(Trouble, answer=LATE),
    st.builds(Trouble, lost=st.just("message")),
    st.builds(Trouble, again=LATE),
)
HARMFUL = st.one_of(HARMLESS, st.builds(Trouble, lost=st.just("any")), st.builds(Trouble, refused=st.just(True)))


def troubles(kinds: st.SearchStrategy[Trouble]) -> st.SearchStrategy[list[Rule]]:
    def rule(call: tuple[str, str], first: int, trouble: Trouble, times: int) -> Rule:
        return Rule(*call, first, trouble, times)

    one = st.builds(rule, st.sampled_from(CALLS), st.integers(0, STEPS + 1), kinds, st.integers(1, 3))
    return st.lists(one, min_size=2, max_size=16)


def change_layout(job: ChangeSimulation) -> None:
    if job.life is not None:
        job.state.request_layout(pipeline(), "a test asks")


def shrink(job: ChangeSimulation) -> None:
    if job.life is not None:
        job.state.resize(2)


VICTIMS = ("coordinator", *WORKERS, *TRAINERS, *RIVALS)
CHANGES = {"another layout": change_layout, "a smaller size": shrink}
PLANNED = st.tuples(TIMES, st.sampled_from(list(CHANGES)))
EVENTS = st.tuples(TIMES, st.sampled_from([*VICTIMS, *CHANGES]))

HELD = [Rule("/v1/steps", "worker-1", 4, Trouble(request=WAIT, until="/v1/stop"))]
SAVED_TWICE = [
    Rule("/v1/saved", "worker-1", 0, Trouble(again=0.25), 9),
    Rule("/v1/saved", "worker-2", 0, Trouble(1.0), 9),
]

UNHEARD = [Rule("/v1/rendezvous", "worker-0", 0, Trouble(lost="message"), 2)]
FIRST_ON_TRAINER_1 = "second coordinator, trainer-1 has the first"
ALONE = [Rule("/v1/steps", "worker-2", 3, Trouble(lost="any"))]


def order(event: tuple[float, str]) -> Order:
    at, what = event
    return at, CHANGES.get(what, lambda job: job.kill(what))


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> End:
    return play(tmp_path_factory.mktemp("calm"), [], {})


def run(folder: Path, events: Sequence[tuple[float, str]], found: Sequence[Rule], stop: float | None) -> list[End]:
    """The run, and behind a stop the one that goes on from there."""
    shutil.rmtree(folder, ignore_errors=True)
    ends = [play(folder, [order(e) for e in sorted(events)], {}, troubles=found, stop_at=stop)]
    check_checkpoints(folder / "store")
    if ends[0].phase == "Suspended":
        ends.append(play(folder, [], {}))
    return ends


def check_checkpoints(store: Path) -> None:
    for path in (store / "manifests").glob("step-*.json"):
        manifest = msgspec.json.decode(path.read_bytes(), type=wire.CheckpointManifest)
        parts = [
            msgspec.json.decode((store / s.key).read_bytes(), type=tuple[int, dict[int, float]])
            for s in manifest.shards
        ]
        held = sorted(chain.from_iterable(values for _, values in parts))
        assert held == list(range(PLACES)), f"{path.name} lacks a rank's part"


def check_same(ends: Sequence[End], calm: End) -> None:
    assert (ends[-1].phase, ends[-1].steps) == ("Completed", calm.steps)
    assert sorted(set(ends[-1].history)) == calm.history


def computed(end: End) -> list[int]:
    return sorted({step for _, step in end.simulation.members.computed})


def check_stopped(end: End) -> None:
    """A stop that arrives before the last step begins suspends."""
    for begun in end.simulation.ledger.stopped.values():
        assert (end.phase == "Suspended") == (begun < STEPS)
        assert computed(end) == list(range(begun)), "a stop ends what has begun, and no more"


@examples
@given(troubles(HARMLESS), st.lists(PLANNED, max_size=1), TIMES)
@example(HELD, [], 2.0)
@example(HELD, [(1.9, "another layout")], 2.0)
@example(SAVED_TWICE, [(2.5, "another layout")], 4.0)
@example(UNHEARD, [], 0.25)
def test_messages_in_any_order_cost_no_step_and_no_worker_also_at_a_change_or_a_stop(
    calm, tmp_path_factory, found, events, stop
):
    folder = tmp_path_factory.getbasetemp() / "harmless"
    ends = run(folder, events, found, stop)
    check_same(ends, calm)
    check_stopped(ends[0])
    assert list(chain.from_iterable(map(computed, ends))) == list(range(STEPS)), "each step is computed in one run"
    assert [(end.again, end.restarts.total()) for end in ends] == [(0, 0)] * len(ends)
    assert ends[0].simulation.starts == 1
    lines = [msgspec.json.decode(line)["step"] for line in (folder / "steps.jsonl").read_bytes().splitlines()]
    assert lines == list(range(STEPS)), "steps.jsonl has each step once"


@examples
@given(troubles(HARMFUL), st.lists(EVENTS, max_size=3, unique_by=lambda event: event[0]), st.none() | TIMES)
@example(SAVED_TWICE, [(2.0, "worker-1")], None)
@example(HELD, [(1.5, "worker-0")], 2.5)
@example([], [(0.25, "a smaller size"), (3.3125, FIRST_ON_TRAINER_1)], 3.25)
@example(ALONE, [(0.25, "trainer-0"), (2.0, "trainer-2"), (3.5, "coordinator")], 1.9375)
def test_losses_and_decisions_in_any_order_of_messages_lead_to_the_same_steps(
    calm, tmp_path_factory, found, events, stop
):
    check_same(run(tmp_path_factory.getbasetemp() / "harmful", events, found, stop), calm)
