"""The coordinator's pure parts, with made-up data."""

from __future__ import annotations

import asyncio
import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from coxswain import digests
from coxswain.config import CheckpointConfig, ReplicaShape, StageShape
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused, Retryable
from coxswain.layout import Device
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.wire import (
    CheckpointManifest,
    DeliveredDigests,
    Evaluation,
    Fault,
    LoaderAddress,
    Register,
    StepDirective,
    StepPlan,
    StepReport,
    StopRequest,
)
from coxswain_coordinator import termination
from coxswain_coordinator.capacity import capacity_fault
from coxswain_coordinator.planning.committer import Committed, steps_ahead
from coxswain_coordinator.state.event_log import EventLog
from coxswain_coordinator.state.jsonl import JsonlWriter
from coxswain_coordinator.state.notifier import Notifier, Topic
from coxswain_coordinator.state.registry import MemberRegistry, join
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.steps import StepTracker, planned_tasks, shares
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_coordinator.world.formation import (
    at_checkpoint,
    layout_of,
    next_generation,
    vocabulary_of,
    world_of,
)
from tests.unit.coordinator_fakes import make_job


def agents(count: int, devices: int = 1) -> list[Register]:
    return [Register("trainer", f"trainer-{i}", f"pod-{i}", "one", "h", 0, devices) for i in range(count)]


def plan(step: int, labels: int = 10) -> StepPlan:
    sequences = (Sequence("code", 0, 3, 0, 6, 6), Sequence("docs", 0, 1, 0, 5, 6))
    tasks = (
        Task(0, "ring", (0, 1), (Slice(0, 0, 0, 3), Slice(1, 0, 3, 6)), 2.0),
        Task(1, "pack", (1,), (Slice(1, 1, 0, 5),), 1.0),
    )
    return StepPlan(1, step, sequences, tasks, (), labels, "digest", 3.0, 1.1)


def report(rank: int, step: int = 0, **changes) -> StepReport:
    found = StepReport(1, step, rank, 10.0 + rank, 7, 1.5, 1e-3, 4.0, 3.0, 0.2, 0.1)
    return replace(found, **changes)


def session(job, trainers: int = 2, manifest=None) -> Session:
    record = next_generation(job, 1, "me", agents(trainers), (), at_checkpoint(job, manifest))
    return Session(job, record, world_of(record, agents(trainers), 320), initial_cursor(job.mix), STREAM_SEED)


def committed(*steps: int, end: int | None = None) -> Committed:
    return Committed(tuple(plan(s) for s in steps), {}, end, steps[-1] + 1)


SHAPES = (ReplicaShape((StageShape(1, 2), StageShape(1))), ReplicaShape((StageShape(2),)))

# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_closes_when_every_rank_and_every_digest_is_there(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    one, two = ("11" * 32, "22" * 32)
    for arrive in (lambda: book.add_report(report(0)), lambda: book.add_delivered(DeliveredDigests(1, 0, ((0, one),)))):
        arrive()
        assert book.close(plan(0), 1.0) is None
    book.add_report(report(1))
    assert book.missing_digests(plan(0)) == 1
    book.add_delivered(DeliveredDigests(1, 0, ((1, two),)))
    line, *_ = book.close(plan(0), 1.0)
    assert line.stream_digest == digests.chain(STREAM_SEED, 0, plan(0).sequences, (one, two))
    assert (line.loss, line.delivered_digest, line.idle_fraction) == ((10.0 + 11.0) / 10, f"{14:016x}", 0.25)
    assert line.tokens_by_source == {"code": 6, "docs": 5}


def test_losses_and_tokens_count_once_a_replica_and_idle_time_over_all_ranks(tmp_path):
    """Ranks of tensor groups and stages that hold no tokens or losses may say what they like of both."""
    job = make_job(tmp_path)
    shaped = replace(job, parallelism=replace(job.parallelism, layout=SHAPES))
    record = next_generation(shaped, 1, "me", agents(2, devices=2), (), at_checkpoint(shaped, None))
    book = StepTracker(record.layout.ranks(), 0, STREAM_SEED, {2: 0.5})
    for rank in range(4):
        assert book.missing_ranks() == list(range(rank, 4))
        mine = replace(report(rank), delivered=1 << rank, compute_seconds=rank, evaluation_loss_sum=float(rank))
        book.add_report(mine)
    book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    line, timing, _ = book.close(replace(plan(0), evaluation=Evaluation((), (), (), labels=2, first=0)), 1.0)
    assert line.loss == (12.0 + 13.0) / 10  # ranks 2 and 3 are the last stages
    assert line.evaluation_loss == (2.0 + 3.0) / 2
    assert line.delivered_digest == f"{0b1001:016x}"  # ranks 0 and 3 are the first ones
    assert line.idle_fraction == 1 - (0 + 1 + 2 + 3) / (4 * 4.0)
    assert [(r.replica, r.stage, r.tensor, r.share) for r in timing.ranks] == [
        (0, 0, 0, 1.0), (0, 0, 1, 1.0), (0, 1, 0, 0.5), (1, 0, 0, 1.0),
    ]  # fmt: skip
    assert timing.replicas == 2


def test_a_rank_has_the_part_of_the_planned_time_that_its_stage_computes(tmp_path):
    job = make_job(tmp_path)
    even = ReplicaShape((StageShape(1), StageShape(1)))
    layout = replace(job, parallelism=replace(job.parallelism, layout=(*SHAPES, even)))
    record = next_generation(layout, 1, "me", agents(3, devices=2), (), at_checkpoint(layout, None))
    found = shares(record.layout, replace(job.model, vocabulary=320))
    head = 320 * 32 / (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64)  # in layers
    first = pytest.approx(1 / (1 + head))
    assert found == {0: pytest.approx(0.5 / (1 + head)), 1: found[0], 2: 1.0, 3: 1.0, 4: first, 5: 1.0}


def test_a_sequence_that_changes_while_it_is_read_is_refused(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    book.add_delivered(DeliveredDigests(1, 0, ((0, "aa"),)))
    with pytest.raises(Refused, match="step 0, sequence 0: its tokens differ"):
        book.add_delivered(DeliveredDigests(1, 0, ((0, "bb"),)))


def test_a_planned_task_starts_when_all_its_replicas_are_free():
    third = Task(2, "ring", (0, 1), (), 1.0)
    found = [(t.task, t.start, t.stop) for t in planned_tasks((*plan(0).tasks, third))]
    assert found == [(0, 0.0, 2.0), (1, 2.0, 3.0), (2, 3.0, 4.0)]


def test_a_planned_task_starts_when_the_waves_before_have_ended_on_all_replicas():
    tasks = (Task(0, "pack", (0,), (), 2.0), Task(1, "pack", (1,), (), 1.0), Task(2, "pack", (1,), (), 1.0, wave=1))
    assert [(t.start, t.stop) for t in planned_tasks(tasks)] == [(0.0, 2.0), (0.0, 1.0), (2.0, 3.0)]


# --- directives ------------------------------------------------------------------------------------------------------


def test_every_rank_gets_the_same_directive_once_its_step_is_planned(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    assert s.directive(6) is s.directive(6)
    assert s.directive(8) is None


def test_a_stop_takes_the_first_step_that_has_not_begun(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    s.directive(0), s.directive(1)
    s.request_stop(-1)
    assert (s.directive(1).end, s.directive(2).end, s.directive(2).checkpoint) == ("", "Suspended", True)


def test_a_stop_at_a_step_lets_the_steps_before_it_run(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    s.request_stop(5)
    assert [s.directive(k).end for k in (4, 5)] == ["", "Suspended"]


def test_the_last_step_of_the_data_is_followed_by_the_end(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(0, 1, 2, end=3))
    assert (s.end_step, s.exhausted, s.directive(3).end, s.directive(3).plan) == (3, True, "Completed", None)


def test_a_change_begins_once_every_rank_has_done_the_steps_before_it(tmp_path):
    found = session(make_job(tmp_path))
    found.add(committed(0, 1))
    found.directive(0)
    found.request_move("another layout")
    assert (found.directive(1).end, found.moved) == ("Moved", False)
    for rank in (0, 1):
        found.book.add_report(report(rank))
    found.book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    assert found.book.close(plan(0), 1.0) is not None and found.moved
    found.request_move("a third layout")
    assert found.move is not None and (found.move.why, found.move.decided) == ("another layout", True)


@pytest.mark.parametrize(
    ("change", "step", "alone"),
    [
        ({}, 2, True),
        ({}, 20, False),  # the stop
        ({"adopted": False}, 2, False),
        ({"lost": "a rank ended"}, 2, False),
        ({"ending": StepDirective(5, True, "Suspended", None)}, 2, False),
    ],
)
def test_a_rank_of_an_adopted_world_begins_a_step_alone_that_is_ahead_of_the_plans_and_before_any_end(
    tmp_path, change, step, alone
):
    found = session(make_job(tmp_path))
    for name, value in ({"adopted": True} | change).items():
        setattr(found, name, value)
    assert (found.catching_up(step), found.begun) == (alone, step if alone else -1)


def test_a_stop_behind_the_last_step_is_no_end_of_its_own_and_the_progress_of_a_start_never_falls(tmp_path):
    found = session(make_job(tmp_path))
    found.request_stop(50)
    assert found.known_end == found.end_step == 20
    found.hear(0, 1.0, 5)
    before = found.start_progress
    found.hear(0, 2.0, 3)
    assert found.start_progress == before


@pytest.mark.parametrize(("open_", "ends", "begun"), [(3, False, 3), (20, False, 19), (3, True, 1)])
def test_the_open_step_of_an_adopted_world_may_have_begun_unless_its_end_is_decided(tmp_path, open_, ends, begun):
    found = session(make_job(tmp_path))
    found.adopted, found.book.open = True, open_
    found.begin(1)
    if ends:
        found.adopt_end(5, completed=False)
    assert found.begun == begun


def test_a_lost_world_issues_no_directives(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    s.lost = "rank 1 ended"
    assert s.directive(0) is None


def test_the_cursor_of_a_requested_checkpoint_is_kept_until_its_manifest_is_made(tmp_path):
    s = session(make_job(tmp_path))
    s.add(replace_cursors(committed(*range(8)), s))
    s.directive(6)
    s.forget_before(8)
    assert sorted(s.cursors) == [6]
    s.mark_saved(6)
    s.forget_before(9)
    assert not s.cursors


def replace_cursors(found: Committed, s: Session) -> Committed:
    return Committed(found.plans, dict.fromkeys(range(8), s.cursors[0]), found.end, found.next)


def test_plans_are_needed_for_so_many_steps_after_the_next_one_and_up_to_the_end(tmp_path):
    s = session(make_job(tmp_path, stop_steps=12))
    assert s.needs_plans(1)
    s.add(committed(*range(8)))
    assert [s.needs_plans(ahead) for ahead in (8, 9)] == [False, True]
    s.begin(0)
    assert [s.needs_plans(ahead) for ahead in (7, 8)] == [False, True]
    s.lost = "rank 1 ended"
    assert not s.needs_plans(8)
    s.lost = ""
    s.add(committed(*range(8, 12)))
    assert not s.needs_plans(99)


def test_eight_plans_at_a_time_are_given_from_a_step_on(tmp_path):
    s = session(make_job(tmp_path))
    assert s.plans_from(0) is None
    s.add(committed(*range(10)))
    assert [p.step for p in s.plans_from(1).plans] == list(range(1, 9))
    assert [p.step for p in s.plans_from(9).plans] == [9]
    assert s.plans_from(10) is None


@pytest.mark.parametrize(("every", "saved", "due"), [(6, 0, [6]), (3, 3, [6]), (3, 2, [3, 6]), (0, 0, [])])
def test_a_checkpoint_is_due_at_multiples_that_are_not_saved(tmp_path, every, saved, due):
    s = session(make_job(tmp_path, checkpoint=CheckpointConfig(uri="x", every_steps=every)))
    s.add(committed(*range(8)))
    s.mark_saved(saved)
    assert [k for k in range(8) if s.directive(k).checkpoint] == due


def test_the_earliest_of_several_stops_counts_and_the_first_end(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    for step in (6, 4, 5):
        s.request_stop(step)
    assert s.stop_at == 4
    s.adopt_end(5, completed=True)
    s.adopt_end(7, completed=False)
    assert (s.ending.step, s.ending.end, s.end_step) == (5, "Completed", 5)


def test_plans_reach_eight_steps_or_thirty_seconds_ahead():
    assert [steps_ahead(seconds) for seconds in (0.0, 60.0, 3.0, 1.0, 0.01)] == [8, 8, 10, 30, 256]


def test_a_new_coordinator_ends_at_the_step_at_which_a_rank_has_ended(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    s.adopt_end(4, completed=False)
    assert (s.directive(4).end, s.directive(4).checkpoint, s.directive(3).end) == ("Suspended", True, "")


def test_an_exit_without_a_pending_save_ends_the_job_at_the_last_checkpoint(tmp_path):
    s = session(make_job(tmp_path))
    s.mark_saved(6)
    s.adopt_end(s.pending.newest(0) or s.saved, completed=True)
    assert (s.ending.step, s.ending.end, s.saved_end, s.end_step) == (6, "Completed", True, 6)


def test_a_stop_of_an_adopted_world_spares_the_open_step_that_may_have_begun(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(8)))
    s.adopted = True
    s.begin(1)
    s.book.open = 2
    s.request_stop(-1)
    assert [s.directive(k).end for k in (2, 3)] == ["", "Suspended"]


# --- world -----------------------------------------------------------------------------------------------------------


def test_ranks_follow_trainers_and_devices(tmp_path):
    layout = layout_of(make_job(tmp_path), list(reversed(agents(2, devices=2))))
    assert [s.device for s in layout.ranks()] == [Device(0, 0), Device(0, 1), Device(1, 0), Device(1, 1)]


@pytest.mark.parametrize(("step", "checkpoint"), [(None, ""), (6, "manifests/step-0000000006.json")])
def test_a_world_begins_at_the_checkpoint_that_its_workers_load(tmp_path, step, checkpoint):
    job = make_job(tmp_path)
    cursor = replace(initial_cursor(job.mix), step=step or 0)
    saved = step and CheckpointManifest(1, job.name, step, 1, cursor, "", 0, "", "", "", 320, (), 0.0)
    record = next_generation(job, 2, "me", agents(2), (), at_checkpoint(job, saved))
    world = world_of(record, agents(2), 320)
    assert (record.generation, record.author, record.trainers) == (2, "me", ("pod-0", "pod-1"))
    assert (world.generation, world.first_step, world.checkpoint) == (2, step or 0, checkpoint)


def test_too_few_replicas_for_the_longest_sequence_are_a_reason_to_wait(tmp_path):
    job = make_job(tmp_path)
    small = replace(job, parallelism=replace(job.parallelism, tokens_per_replica=100))
    assert capacity_fault(small, layout_of(small, agents(3))) == ""
    assert capacity_fault(small, layout_of(small, agents(2))).startswith("CapacityLost: 2 replicas hold 200 tokens")
    exact = replace(job, parallelism=replace(job.parallelism, tokens_per_replica=128))
    assert capacity_fault(exact, layout_of(exact, agents(2))) == ""


def test_a_world_has_the_layout_that_the_job_gives(tmp_path):
    job = make_job(tmp_path)
    shaped = replace(job, parallelism=replace(job.parallelism, layout=SHAPES))
    record = next_generation(shaped, 1, "me", agents(2, devices=2), (), at_checkpoint(shaped, None))
    assert record.layout.summary() == "1 x tp2/1pp2 + 1 x tp1pp1"
    assert [(s.device, s.replica, s.stage, s.tensor) for s in record.layout.ranks()] == [
        (Device(0, 0), 0, 0, 0), (Device(0, 1), 0, 0, 1), (Device(1, 0), 0, 1, 0), (Device(1, 1), 1, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "needed"), [({"layout": SHAPES}, 4), ({"tensor": 2, "pipeline": 2}, 4), ({"pipeline": 3}, 3)]
)
def test_fewer_devices_than_the_layout_needs_are_a_reason_to_wait(tmp_path, changes, needed):
    job = make_job(tmp_path)
    deep = replace(job, parallelism=replace(job.parallelism, **changes))
    words = f"CapacityLost: 2 devices, the layout needs {needed}; waiting for more trainers"
    assert capacity_fault(deep, layout_of(deep, agents(1, devices=2))) == words
    assert capacity_fault(deep, layout_of(deep, agents(2, devices=2))) == ""


def test_only_replicas_of_equal_stages_hold_a_sequence_together(tmp_path):
    job = make_job(tmp_path)
    parallelism = replace(job.parallelism, layout=SHAPES, tokens_per_replica=200)
    unequal = replace(job, parallelism=parallelism)
    assert capacity_fault(unequal, layout_of(unequal, agents(2, devices=2))).startswith(
        "CapacityLost: 1 replicas hold 200 tokens of one sequence, batch.maxSequenceTokens is 256"
    )


def test_the_vocabulary_follows_the_tokenizer_unless_the_model_has_its_own(tmp_path):
    job = make_job(tmp_path)
    assert (vocabulary_of(job, 257), vocabulary_of(job, 320)) == (320, 320)
    own = replace(job, model=replace(job.model, vocabulary=300))
    assert (vocabulary_of(own, 257), vocabulary_of(own, 300)) == (300, 300)
    with pytest.raises(Refused, match="vocabulary is 300, the tokenizer has 301 ids; give at least 301"):
        vocabulary_of(own, 301)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_after_a_loss_a_trainer_is_missing_until_it_registers_again():
    registry = MemberRegistry()
    for agent in agents(2):
        registry.register(agent)
    registry.expect_again("trainer")
    registry.register(agents(2)[1])
    assert registry.missing("trainer", 2) == ["trainer-0"]


def test_members_of_a_role_are_ordered_by_number_and_only_the_first_so_many_count():
    registry, [agent] = MemberRegistry(), agents(1)
    for name in ("trainer-10", "trainer-2", "trainer-3"):
        registry.register(replace(agent, name=name, instance=name))
    registry.register(replace(agent, role="constructor", name="trainer-0"))
    assert [m.name for m in registry.of("trainer")] == ["trainer-2", "trainer-3", "trainer-10"]
    assert [m.name for m in registry.of("trainer", 3)] == ["trainer-2"]
    assert registry.missing("trainer", 3) == ["trainer-0", "trainer-1"]
    assert len(registry) == 4


def test_a_process_is_known_until_its_role_is_expected_again():
    registry, [agent] = MemberRegistry(), agents(1)
    registry.register(agent)
    registry.register(replace(agent, role="loader", name="loader-0", instance="two", port=7))
    registry.expect_again("trainer")
    assert [registry.knows(instance) for instance in ("one", "two", "three")] == [False, True, False]
    assert registry.loader_addresses() == (LoaderAddress("loader-0", "h", 7, "two"),)
    registry.register(agent)
    assert registry.knows("one")


def test_more_than_four_names_are_counted():
    assert (join("abcd"), join("abcdef"), join([])) == ("a, b, c, d", "a, b, c, d and 2 more", "")


def test_another_instance_of_a_name_replaces_the_one_before():
    registry, [agent] = MemberRegistry(), agents(1)
    assert [registry.register(a) for a in (agent, agent, replace(agent, instance="two"))] == ["new", "same", "replaced"]


def test_a_name_without_a_number_is_refused():
    with pytest.raises(Refused, match="'trainer': expected ROLE-NUMBER"):
        MemberRegistry().register(replace(agents(1)[0], name="trainer"))


@pytest.mark.parametrize("torn", [b"", b'{"st', b'{"st' * 700_000])
@pytest.mark.parametrize("whole", [b"", b'{"step":0}\n'])
def test_half_a_line_of_a_killed_writer_is_dropped(tmp_path, whole, torn):
    (tmp_path / "steps.jsonl").write_bytes(whole + torn)
    JsonlWriter(tmp_path, "steps.jsonl").append({"step": 1})
    assert (tmp_path / "steps.jsonl").read_bytes() == whole + b'{"step":1}\n'


def test_a_restart_beside_a_large_file_does_not_take_it_into_memory(tmp_path):
    (tmp_path / "timings.jsonl").write_bytes((b"x" * 8191 + b"\n") * 2048 + b"torn")
    tracemalloc.start()
    try:
        JsonlWriter(tmp_path, "timings.jsonl")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "timings.jsonl").stat().st_size == 16 << 20


def test_a_limited_file_keeps_the_newest_lines_whole_and_stays_within_its_limit(tmp_path):
    writer, path = JsonlWriter(tmp_path, "timings.jsonl", most=1000), tmp_path / "timings.jsonl"
    for step in range(500):
        writer.append({"step": step, "filler": "x" * (step % 50)})
        found = [msgspec.json.decode(line)["step"] for line in path.read_bytes().splitlines()]
        assert found == list(range(step + 1 - len(found), step + 1))
        assert path.stat().st_size <= 1000
    assert path.stat().st_size > 300
    assert [p.name for p in tmp_path.iterdir()] == ["timings.jsonl"]


def test_event_numbers_go_on_growing_after_a_restart():
    """Also where there were several a second."""
    before, after = EventLog(lambda: 1000.0), EventLog(lambda: 1001.0)
    for book in (before, after):
        for _ in range(64):
            book.add("Resumed", "x")
    assert before.latest()[-1].sequence < after.latest()[0].sequence


def test_a_retryable_fault_exits_with_one_and_another_with_two():
    assert termination.failed(Fault("WorkerCrashLoop", "m", retryable=True)).exit_code == 1
    assert termination.failed(Fault("SourceEmpty", "m")).exit_code == 2


def test_a_stop_at_a_later_step_does_not_end_a_job_without_a_world(tmp_path):
    assert termination.stopped_idle(StopRequest("x", at_step=5), None, None) is None
    assert termination.stopped_idle(StopRequest("x"), session(make_job(tmp_path)), None) is None


@pytest.mark.looptime
async def test_a_notification_wakes_a_waiter_and_a_wait_ends_at_its_deadline(looptime):
    notifier, facts = Notifier(), []
    asyncio.get_running_loop().call_later(5, lambda: (facts.append("yes"), notifier.notify()))
    assert await notifier.wait_until(lambda: facts[0] if facts else None, 10) == "yes"
    assert looptime == 5
    assert await notifier.wait_until(lambda: None, 10) is None
    assert looptime == 15


async def test_work_on_a_store_that_answers_in_time_succeeds():
    answers = [Retryable("away"), Retryable("away"), None]
    executor = StoreExecutor()

    def work() -> str:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return "done"

    assert await executor(work) == "done"
    assert executor.last_error == ""


async def test_a_store_that_stays_unavailable_is_named_in_the_error():
    executor = StoreExecutor(patience=0.3)

    def work() -> None:
        raise Retryable("s3://runs/demo: connection refused")

    with pytest.raises(Retryable, match="connection refused"):
        await executor(work)
    assert executor.last_error == "s3://runs/demo: connection refused"


def test_a_timing_line_names_planned_and_measured_tasks(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    book.add_report(report(0))
    book.add_report(report(1, seconds=5.0))
    book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    _, timing, _ = book.close(plan(0), 1.0)
    line = msgspec.to_builtins(timing)
    assert (line["seconds"], line["makespan"], line["replicas"]) == (5.0, 3.0, 2)
    assert [(t["kind"], t["tokens"], t["sequences"]) for t in line["planned"]] == [("ring", 6, (0,)), ("pack", 5, (1,))]
    assert [r["data_wait"] for r in line["ranks"]] == [0.2, 0.2]


async def test_a_change_wakes_the_waiters_of_its_topic_and_the_driver_and_no_others():
    notifier, looks = Notifier(), dict.fromkeys(Topic, 0)

    def look(topic: Topic) -> None:
        looks[topic] += 1

    waits = [asyncio.ensure_future(notifier.wait_until(lambda t=topic: look(t), 10, topic)) for topic in Topic]
    await asyncio.sleep(0)
    for topics, woken in (((Topic.ANY,), {Topic.ANY}), ((Topic.PLANS,), {Topic.ANY, Topic.PLANS}), ((), set(Topic))):
        before = dict(looks)
        notifier.notify(*topics)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert {topic for topic in Topic if looks[topic] > before[topic]} == woken
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def test_a_member_of_one_role_does_not_know_the_instances_of_another_that_must_register_again():
    registry = MemberRegistry()
    registry.register(Register("trainer", "trainer-0", "p", "a", "h", 0, 1))
    registry.register(Register("constructor", "trainer-0", "p", "b", "h", 0))
    registry.expect_again("trainer")
    assert (registry.knows("a"), registry.knows("b"), registry.has_all("trainer", 1)) == (False, True, False)
    registry.register(Register("trainer", "trainer-0", "p", "c", "h", 0, 1))
    assert (registry.knows("a"), registry.knows("c"), registry.has_all("trainer", 1)) == (False, True, True)
    assert not registry.has_all("trainer", 2)
