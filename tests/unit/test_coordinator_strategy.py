"""Mode Auto in a coordinator: chosen once from the mix's lengths and the trainers' devices, recorded, kept, reported."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.config import (
    BatchConfig,
    JobConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecoveryConfig,
    ReplicaShape,
    StageShape,
)
from coxswain.cost.constants import MODELS, constants_for, load_hardware
from coxswain.layout import Device, shaped_layout
from coxswain.membership.order import SourceView
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Membership, Sequence
from coxswain.plan.strategy.choose import choose
from coxswain.plan.strategy.values import Alternative, Kind, Machine, Strategy
from coxswain.planlog import StrategyRecord
from coxswain_coordinator.api.report import job_report, termination_message
from coxswain_coordinator.planning import strategies
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.planning.strategies import Strategies
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.job_strategy import JobStrategy
from coxswain_coordinator.world import manager
from coxswain_coordinator.world.survivors import after_loss
from coxswain_link.metrics import build
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import BLOCKS, SAMPLES, cluster, lengths_of, make_job
from tests.unit.coordinator_lead import begun, holds, leading, lose, register, small, training
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime

AUTO = ParallelConfig(mode="Auto", tokens_per_replica=256, max_degree=4)


def auto(folder: Path, **changes: Any) -> JobConfig:
    return small(folder, parallelism=AUTO, **changes)


def log_of(job: JobConfig) -> PlanLog:
    return PlanLog(open_store(job.checkpoint.uri))


def stream_of(job: JobConfig) -> Stream:
    def lengths(source: str) -> Any:
        return lambda block: lengths_of(source, block)

    counts = [SAMPLES] * BLOCKS
    views = {s.name: SourceView(s.name, np.array(counts), lengths(s.name)) for s in job.mix.sources}
    return Stream(job.mix, job.batch, views)


def settle(
    job: JobConfig, devices: tuple[int, ...], author: str = "one", nodes: tuple[str, ...] = (), rows: int = 320
) -> StrategyRecord:
    open_store(job.checkpoint.uri, create=True)
    stream = stream_of(job)
    return Strategies(log_of(job), author).settle(job, rows, devices, stream, initial_cursor(job.mix), nodes)


# --- the record --------------------------------------------------------------------------------------------------------


def test_the_same_devices_keep_the_strategy_that_an_earlier_coordinator_chose(tmp_path: Path) -> None:
    job = auto(tmp_path)
    first = settle(job, (1, 1))
    assert settle(job, (1, 1), "two") == first
    assert first.author == "one"
    assert log_of(job).last_strategy() == first


def test_a_choice_is_kept_on_other_nodes_as_long_as_its_copies_fit_there(tmp_path: Path) -> None:
    """Two groups of two devices, and whole replicas of which those of the fourth trainer keep the half of a group's each, or on a
    node each what the third one's have."""
    model = replace(MODELS["llama-7b"], layers=20)
    job = auto(tmp_path, model=model, recovery=RecoveryConfig(copies=True))
    job = replace(job, parallelism=replace(AUTO, hardware="a100-40g"))
    one = settle(job, (2,) * 4, rows=32_000)
    mixed = Alternative("2 x tp2pp1 + 4 x tp1pp1", (Kind(2, (20,)).shape(2), Kind(1, (20,)).shape(4)), 1.0)
    log_of(job).claim_strategy(replace(one, number=1, strategy=Strategy(mixed)))
    for nodes in (("a", "a", "b", "b"), ("b", "b", "c", "c")):
        assert settle(job, (2,) * 4, "two", nodes, 32_000).number == 1
    again = settle(job, (2,) * 4, "two", ("a", "b", "c", "d"), 32_000)
    assert (again.number, again.author, again.strategy.chosen == mixed) == (2, "two", False)


@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        ((2, 2), {}),
        ((1, 1), {"parallelism": replace(AUTO, tokens_per_replica=512)}),
        ((1, 1), {"parallelism": replace(AUTO, balance="Naive")}),
        ((1, 1), {"optimizer": OptimizerConfig(learning_rate=1e-3, kind="Muon")}),
    ],
)
def test_other_devices_or_another_policy_are_chosen_for_again_and_both_choices_stay(
    devices: tuple[int, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    job = auto(tmp_path)
    before = settle(job, (1, 1))
    after = settle(replace(job, **changes), devices, "two")
    assert (after.number, after.author, after.devices) == (1, "two", devices)
    assert before.asked != after.asked or before.devices != after.devices
    assert settle(replace(job, **changes), devices, "three") == after


def test_of_two_coordinators_at_once_both_follow_what_was_claimed_first(tmp_path: Path) -> None:
    job = auto(tmp_path)
    open_store(job.checkpoint.uri, create=True)
    mine, log = settle(job, (2, 2)), log_of(job)
    other = Strategies(log, "late")
    log.last_strategy = lambda: None  # type: ignore[method-assign]  # it looked before the first one claimed
    assert other.settle(job, 320, (2, 2), stream_of(job), initial_cursor(job.mix)) == mine


@pytest.mark.parametrize(
    ("devices", "changes"), [((1, 1), {}), ((2, 2), {"parallelism": replace(AUTO, tokens_per_replica=512)})]
)
def test_of_two_coordinators_at_once_with_other_devices_or_policies_the_later_one_chooses_again_for_its_own(
    tmp_path: Path, devices: tuple[int, ...], changes: dict[str, Any]
) -> None:
    job = auto(tmp_path)
    mine, log = settle(job, (2, 2)), log_of(job)
    look, missed = log.last_strategy, [None]
    log.last_strategy = lambda: missed.pop() if missed else look()  # type: ignore[method-assign]
    later = replace(job, **changes)
    found = Strategies(log, "late").settle(later, 320, devices, stream_of(job), initial_cursor(job.mix))
    assert (mine.number, found.number, found.devices, found.author) == (0, 1, devices, "late")


def test_the_choice_is_for_the_jobs_own_balance_copies_and_least_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[Any, ...]]()

    def chosen(machine: Machine, steps: Any, balance: str) -> Strategy:
        seen.append((balance, machine.copies, machine.least))
        return choose(machine, steps, balance)

    monkeypatch.setattr(strategies, "choose", chosen)
    policy = replace(AUTO, balance="Naive", tokens_per_replica=8192)
    batch = BatchConfig(tokens_per_step=2**14, max_sequence_tokens=512)
    for copies in (True, False):
        job = auto(tmp_path / str(copies), batch=batch, recovery=RecoveryConfig(copies=copies))
        settle(replace(job, parallelism=policy), (1, 1))
    assert seen == [("Naive", True, 4096), ("Naive", False, 4096)]


# --- the lengths -------------------------------------------------------------------------------------------------------


class Steps:
    """A stream of steps of these lengths, and then an end of the data without a sequence."""

    def __init__(self, *steps: list[int]) -> None:
        self._steps, self.batch = steps, BatchConfig(tokens_per_step=64, max_sequence_tokens=48)

    def advance(self, cursor: int) -> tuple[Membership, int]:
        assert cursor <= len(self._steps), "nothing is behind the end"
        lengths = [*self._steps, []][cursor]
        sequences = tuple(Sequence("code", 0, i, 0, n, n) for i, n in enumerate(lengths))
        return Membership(cursor, sequences, None, exhausted=cursor == len(self._steps)), cursor + 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "begin", "lengths"),
    [
        ([[7], [3, 4], [5], [6], [8], [9], [10]], 1, [[3, 4], [5], [6], [8], [9]]),
        ([[7], [3, 4]], 0, [[7], [3, 4]]),
        ([[7]], 1, [[48]]),
    ],
    ids=["amid", "near the end", "at the end"],
)
def test_the_choice_goes_by_the_next_five_steps_that_have_sequences_or_else_by_the_longest_sequence(
    steps: list[list[int]], begin: int, lengths: list[list[int]]
) -> None:
    found = strategies.upcoming(Steps(*steps), begin)  # type: ignore[arg-type]
    assert [step.tolist() for step in found] == lengths


def test_muon_gets_no_tensor_groups(tmp_path: Path) -> None:
    record = settle(auto(tmp_path, optimizer=OptimizerConfig(learning_rate=1e-3, kind="Muon")), (2, 2))
    found = (record.strategy.chosen, *record.strategy.alternatives)
    assert {stage.tensor for each in found for shape in each.replicas for stage in shape.stages} == {1}


# --- the world ---------------------------------------------------------------------------------------------------------


async def test_the_world_has_the_chosen_layout_and_the_report_names_it_beside_the_measured_time(tmp_path: Path) -> None:
    job = make_job(tmp_path, parallelism=AUTO, stop_steps=8)
    async with cluster(job, tmp_path) as c:
        report = await c.play()
        session = c.coordinator.state.session
    record = log_of(job).last_strategy()
    assert record is not None
    assert session is not None
    assert report.phase == "Completed"
    assert report.layout_summary == record.strategy.chosen.summary == session.record.layout.summary()
    assert report.strategy is not None
    assert report.strategy.chosen.summary == record.strategy.chosen.summary
    assert [a.summary for a in report.strategy.alternatives] == [a.summary for a in record.strategy.alternatives]
    assert report.step_seconds > 0
    (event,) = [e for e in report.events if e.reason == "StrategyChosen"]
    assert event.message.startswith(f"{record.strategy.chosen.summary}: ")


async def test_a_choice_goes_by_the_nodes_of_the_trainers_and_by_the_profile_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Machine]()

    def chosen(machine: Machine, steps: Any, balance: str) -> Strategy:
        seen.append(machine)
        return choose(machine, steps, balance)

    monkeypatch.setattr(strategies, "choose", chosen)
    for profile in ("", "file:///profile.json"):
        job = make_job(tmp_path / f"p{len(seen)}", parallelism=replace(AUTO, profile=profile))
        async with leading(job) as lead:
            lead.state.hardware = load_hardware("h100-80g")
            lead.index()
            register(lead, *(replace(agent, node=f"node-{i}") for i, agent in enumerate(agents(2))))
            await begun(lead, 1)
    assert [machine.nodes for machine in seen] == [("node-0", "node-1")] * 2
    constants = [constants_for(hardware, seen[0].model) for hardware in ("cpu", "h100-80g")]
    assert [machine.constants for machine in seen] == constants


async def test_a_recorded_layout_is_used_whatever_would_be_chosen_now(tmp_path: Path) -> None:
    """Two replicas of one device would be faster; the record says two stages."""
    job = auto(tmp_path)
    found = settle(job, (1, 1))
    (piped,) = [a for a in found.strategy.alternatives if a.summary == "1 x tp1pp2"]
    store = open_store(job.checkpoint.uri)
    store.delete("log/strategies/00000000.json.zst")
    log_of(job).claim_strategy(replace(found, author="before", strategy=replace(found.strategy, chosen=piped)))
    async with training(job) as lead:
        assert lead.state.session.record.layout.summary() == "1 x tp1pp2"
        assert len([e for e in lead.state.events.latest() if e.reason == "StrategyChosen"]) == 1, (
            "the one that chose is gone"
        )
        report = job_report(lead.state)
    assert report.strategy is not None
    assert report.strategy.chosen.summary == "1 x tp1pp2"


PIPES = Alternative("2 x tp1pp2", (ReplicaShape((StageShape(1, 1), StageShape(1, 1)), 2),), 1.0)
WHOLE = Alternative("3 x tp1pp1", (ReplicaShape((StageShape(2, 1),), 3),), 1.0)


@pytest.mark.parametrize(("own_seconds", "runs"), [(1.0, "1 x tp1pp2"), (0.5, "3 x tp1pp1")])
async def test_after_a_loss_the_event_and_the_report_name_a_strategy_only_if_the_world_has_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_seconds: float, runs: str
) -> None:
    """Of two pipelines over four trainers one is whole; for the three trainers that are left Auto chooses another layout."""
    by_trainers = {4: Strategy(PIPES), 3: Strategy(WHOLE)}
    monkeypatch.setattr(strategies, "choose", lambda machine, *_: by_trainers[len(machine.trainers)])
    predicted = partial(after_loss, seconds=lambda _, of: own_seconds if len(of.replicas) == 3 else 1.0)
    monkeypatch.setattr(manager, "after_loss", predicted)
    job = replace(auto(tmp_path), trainers=4, min_trainers=2)
    async with training(job) as lead:
        lose(lead, 1)
        register(lead, *(replace(a, left=1) for i, a in enumerate(agents(4)) if i != 1))
        await begun(lead, 2)
        report = job_report(lead.state)
        chosen = [e.message.partition(":")[0] for e in lead.state.events.latest() if e.reason == "StrategyChosen"]
        assert report.layout_summary == runs
        assert (report.strategy and report.strategy.chosen.summary) == (runs if runs == WHOLE.summary else None)
        assert chosen == [PIPES.summary, *([runs] if runs == WHOLE.summary else [])]
        record = lead.state.strategy.record
        assert record and record.strategy.chosen == WHOLE, "it is recorded all the same"


@pytest.mark.parametrize("judged", [False, True])
async def test_all_state_is_saved_before_trainers_join_since_the_layout_is_chosen_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: bool
) -> None:
    """Two trainers, of which one works in the layout that is chosen for three."""
    fewer, both = (Alternative(f"{n} x tp1pp1", (ReplicaShape((StageShape(2, 1),), n),), 1.0) for n in (1, 2))
    monkeypatch.setattr(strategies, "choose", lambda machine, *_: Strategy({2: both, 3: fewer}[len(machine.trainers)]))
    async with training(replace(auto(tmp_path), min_trainers=1)) as lead:
        monkeypatch.setattr(manager, "device_memory", lambda _: int(judged))
        await lead.close(0)
        lead.state.resize(3)
        lead.state.register(agents(3)[2])
        session = lead.state.session
        await lead.until(lambda: session.move)
        fault = "; through a checkpoint: mode Auto chooses a layout, which may not fit beside this one"
        assert session.move.why == "trainer-2 joined" + fault * judged
        assert session.directive(session.move.step).checkpoint
        lead.save(session.move.step, 0, 1, end="Moved")
        await lead.until(lambda: session.lost)
        register(lead, *holds(lead, session.move.step), agents(3)[2])
        await begun(lead, 2)
        assert lead.state.session.record.layout.summary().startswith(fewer.summary)
        assert lead.state.session.book.open == session.move.step


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("saved", [False, True])
def test_what_another_coordinator_chose_is_an_event_until_the_first_checkpoint_only(
    tmp_path: Path, saved: bool, mine: bool
) -> None:
    """That coordinator may have ended before the operator has read its report, but not long before a checkpoint."""
    job, layout = auto(tmp_path), shaped_layout([Device(t, 0) for t in range(3)], WHOLE.replicas)
    strategy = JobStrategy(job)
    strategy.take(StrategyRecord(0, "one", (1,), "", Strategy(WHOLE)), mine)
    assert strategy.announce(shaped_layout([Device(0, 0)], PIPES.replicas), saved) == "", "another layout"
    first, again = strategy.announce(layout, saved), strategy.announce(layout, saved)
    assert (bool(first), again) == (mine or not saved, "")
    assert strategy.job.parallelism.layout == WHOLE.replicas != job.parallelism.layout


@pytest.mark.parametrize("runs", [True, False])
async def test_a_choice_is_an_event_of_the_next_coordinator_where_the_one_that_chose_ended_with_its_first_world(
    tmp_path: Path, runs: bool
) -> None:
    """The operator has read no report of it: the world goes on, or the trainers have not entered it."""
    async with training(auto(tmp_path)):
        pass
    async with leading(auto(tmp_path), "two") as lead:
        lead.index()
        lead.arrive(generation=int(runs))
        await begun(lead, 1 if runs else 2)
        assert [e.reason for e in lead.state.events.latest()].count("StrategyChosen") == 1


async def test_a_choice_is_no_event_of_a_coordinator_that_adopts_a_world_with_a_checkpoint(tmp_path: Path) -> None:
    async with training(auto(tmp_path)) as lead:
        lead.state.session.directive(3)
        await lead.saved(3)
    async with leading(auto(tmp_path)) as lead:  # a container that is restarted has the same name
        lead.index()
        lead.arrive(generation=1)
        await begun(lead, 1)
        assert "StrategyChosen" not in [e.reason for e in lead.state.events.latest()]


async def test_plans_have_no_task_of_more_tokens_than_the_record_gives_its_kind(tmp_path: Path) -> None:
    """The policy has 256. The ladder against slow devices goes by the record, too."""
    job = auto(tmp_path, batch=BatchConfig(tokens_per_step=512, max_sequence_tokens=128))
    found = settle(job, (1, 1))
    chosen = next(a for a in (found.strategy.chosen, *found.strategy.alternatives) if a.summary == "2 x tp1pp1")
    fewer = replace(chosen, replicas=tuple(replace(shape, tokens=128) for shape in chosen.replicas))
    open_store(job.checkpoint.uri).delete("log/strategies/00000000.json.zst")
    log_of(job).claim_strategy(replace(found, strategy=replace(found.strategy, chosen=fewer)))
    async with training(job) as lead:
        assert lead.state.session is not None
        plans = lead.state.session.plans_from(0).plans
        assert lead.state.ladder.job == lead.state.strategy.job != job
    tokens = [
        sum(s.stop - s.start for s in t.slices if s.replica == r) for p in plans for t in p.tasks for r in t.replicas
    ]
    assert 64 < max(tokens) <= 128


async def test_a_fixed_mode_records_and_reports_no_strategy(tmp_path: Path) -> None:
    job = small(tmp_path)
    async with training(job) as lead:
        report = job_report(lead.state)
    assert report.strategy is None
    assert log_of(job).last_strategy() is None


async def test_a_model_that_fits_no_layout_ends_the_job_by_name(tmp_path: Path) -> None:
    huge = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=28672)
    job = auto(tmp_path, model=huge)
    job = replace(job, parallelism=replace(AUTO, hardware="a100-40g"))
    async with leading(job) as lead:
        lead.index()
        lead.arrive()
        await lead.until(lambda: lead.state.finished is not None)
        assert lead.state.finished.reason == "NoStrategy"
        assert "use more devices" in lead.state.finished.message


def test_a_termination_message_with_a_strategy_fits_in_what_a_kubelet_keeps(tmp_path: Path) -> None:
    state = JobState(auto(tmp_path), build("coordinator"), None, lambda: 0.0)
    many = tuple(Alternative(f"{n} x tp1pp1 + 3 x tp8pp16", (), 1.0) for n in range(40))
    state.take_strategy(StrategyRecord(0, "one", (1,), "", Strategy(many[0], many[1:])), mine=True)
    report = job_report(state)
    assert report.strategy is not None
    assert len(report.strategy.alternatives) == 8
    assert len(termination_message(report)) <= 4096
