"""A step closes with the figures of its ranks, and a plan's tasks have their times."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from coxswain import digests
from coxswain.config import ReplicaShape, StageShape
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused
from coxswain.plan.values import Task
from coxswain.wire import DeliveredDigests, Evaluation, Totals
from coxswain_coordinator.steps import StepTracker, planned_tasks, shares
from coxswain_coordinator.world.formation import at_checkpoint, next_generation
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import SHAPES, agents, plan, report, session


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


def served(step: int = 0) -> DeliveredDigests:
    return DeliveredDigests(1, step, ((0, "11" * 32), (1, "22" * 32)))


def test_a_step_waits_for_every_rank_until_its_world_is_over_and_then_for_one_that_knows_the_sums_of_all(tmp_path):
    book = StepTracker(session(make_job(tmp_path), trainers=3).world.seats, 0, STREAM_SEED)
    book.add_delivered(served())
    assert book.close(plan(0), 1.0, world_over=True) is None
    book.add_report(report(0))
    assert book.close(plan(0), 1.0, world_over=True) is None, "two losses are unknown"
    book.add_report(replace(report(1), totals=Totals(45.0, 5)))
    assert book.close(plan(0), 1.0) is None, "the third may still report"
    line, timing, reports = book.close(plan(0), 1.0, world_over=True)
    assert (line.loss, line.delivered_digest) == (4.5, f"{5:016x}")
    assert [r.rank for r in timing.ranks] == list(reports) == [0, 1]


def test_a_step_of_a_world_that_is_over_is_not_closed_without_its_tokens(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    book.add_report(replace(report(0), totals=Totals(45.0, 5)))
    book.add_report(report(1))
    assert book.close(plan(0), 1.0, world_over=True) is None
    book.add_delivered(served())
    assert book.close(plan(0), 1.0, world_over=True) is not None


def test_reports_and_digests_of_a_closed_step_change_nothing(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    for rank in range(2):
        book.add_report(report(rank))
    book.add_delivered(served())
    assert book.close(plan(0), 1.0) is not None
    for rank in range(2):
        book.add_report(report(rank))
    book.add_delivered(DeliveredDigests(1, 0, ((0, "33" * 32),)))  # also of other tokens: the step is in the log
    assert (book.open, book.missing_ranks(), book.missing_digests(plan(1))) == (1, [0, 1], 2)


@pytest.mark.parametrize(("labels", "loss"), [(0, 21.0), (1, 21.0), (2, 10.5)])
def test_a_loss_is_the_mean_of_the_labels(tmp_path, labels, loss):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    for rank in range(2):
        book.add_report(report(rank))
    book.add_delivered(served())
    line, *_ = book.close(plan(0, labels), 1.0)
    assert line.loss == loss


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
    book.add_delivered(served())
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


def test_a_timing_line_names_planned_and_measured_tasks(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    book.add_report(report(0))
    book.add_report(report(1, seconds=5.0))
    book.add_delivered(served())
    _, timing, _ = book.close(plan(0), 1.0)
    line = msgspec.to_builtins(timing)
    assert (line["seconds"], line["makespan"], line["replicas"]) == (5.0, 3.0, 2)
    assert [(t["kind"], t["tokens"], t["sequences"]) for t in line["planned"]] == [("ring", 6, (0,)), ("pack", 5, (1,))]
    assert [r["data_wait"] for r in line["ranks"]] == [0.2, 0.2]
