from __future__ import annotations

import dataclasses
import hashlib

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.config import BatchConfig, EvaluationConfig, JobConfig, PhaseConfig
from coxswain.errors import Refused, Stale
from coxswain.layout import Layout
from coxswain.membership.held_out import hold_out
from coxswain.membership.order import SourceView
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Membership
from coxswain.plan.chunks import ring_slices
from coxswain.plan.values import Operation, Placement, StageOperations, Task
from coxswain.planlog import Generation, PlacementSegment, membership_key, placement_key
from coxswain_coordinator.planning.committer import Committed, Committer, step_plan
from coxswain_coordinator.planning.evaluations import check_forwards, is_due
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.placers import Placed, in_turn, place_step
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.world.formation import at_checkpoint, next_generation
from coxswain_link.store import Store, open_store
from tests.fuzzed_plans import layout_of_shapes, placement_of
from tests.unit.coordinator_fakes import BLOCKS, SAMPLES, lengths_of, make_job
from tests.unit.coordinator_samples import agents


def committer(job, generation: int = 1, trainers: int = 2) -> Committer:
    store = open_store(job.checkpoint.uri, create=True)
    record = next_generation(job, generation, "me", agents(trainers), (), at_checkpoint(job, None))
    log = PlanLog(store)
    log.create_generation(record)
    mixes = MixHistory(log)
    mixes.offer(job.mix)
    return Committer(
        job,
        log,
        mixes,
        stream_of(job),
        record,
        in_turn(place_step, record.layout, job),
    )


def stream_of(job) -> Stream:
    counts = np.full(BLOCKS, SAMPLES)
    views = {s.name: SourceView(s.name, counts, lambda b, n=s.name: lengths_of(n, b)) for s in job.mix.sources}
    return Stream(job.mix, job.batch, views, held_out=hold_out(job.mix, job.batch, views, job.evaluation.tokens))


def commit(c: Committer, segments: int = 1, stop: int = 100) -> list[Committed]:
    cursor, out = initial_cursor(c.job.mix), []
    for _ in range(segments):
        out.append(c.commit(cursor, stop))
        cursor = out[-1].cursors[out[-1].next]
    return out


def test_a_segment_holds_eight_steps_and_the_next_one_begins_behind_it(tmp_path):
    first, second = commit(committer(make_job(tmp_path)), 2)
    assert [p.step for p in first.plans + second.plans] == list(range(16))
    assert (first.next, second.next, second.end) == (8, 16, None)


def test_a_committer_holds_one_segment_however_many_it_has_committed(tmp_path):
    """One of a large job is a million objects. All of it is in the plan log, and what is not held is read there again."""
    found, read = committer(make_job(tmp_path)), list[str]()
    cursors = [committed.cursors[8 * number] for number, committed in enumerate(commit(found, 5))]
    membership, placement = found.log.membership, found.log.placement
    found.log.membership = lambda number: (read.append(f"membership {number}"), membership(number))[1]
    found.log.placement = lambda *of: (read.append("placement {1}, part {2}".format(*of)), placement(*of))[1]
    for cursor in reversed(cursors):
        found.commit(cursor, 100)
    assert read == [
        what
        for number in (3, 2, 1, 0)
        for what in (f"membership {number}", f"placement {number}, part 0", f"placement {number}, part 1")
    ]


def test_a_step_without_a_label_amid_the_stream_has_a_plan_as_any_other(tmp_path):
    """In steps of one token, those with the ends of documents."""
    job = make_job(tmp_path, batch=BatchConfig(tokens_per_step=1, max_sequence_tokens=1))
    plans = [plan for segment in commit(committer(job), 20, stop=1000) for plan in segment.plans]
    assert [p.step for p in plans] == list(range(160))
    assert {p.labels for p in plans} == {0, 1}


def test_another_generation_keeps_the_membership_and_places_it_again(tmp_path):
    job = make_job(tmp_path)
    [one], [two] = commit(committer(job)), commit(committer(job, 2, trainers=3))
    assert [p.sequences for p in one.plans] == [p.sequences for p in two.plans]
    assert {p.generation for p in two.plans} == {2}
    paths = [o.path for o in open_store(job.checkpoint.uri).list("log/")]
    assert [p for p in paths if "membership" in p] == [membership_key(0)]
    assert [p for p in paths if "placements" in p] == [placement_key(1, 0), placement_key(2, 0)]


def test_a_commit_from_the_middle_of_a_segment_uses_the_segment_that_is_there(tmp_path):
    job = make_job(tmp_path)
    [first] = commit(committer(job))
    again = committer(job, 2).commit(first.cursors[5], 100)
    assert [p.step for p in again.plans] == [5, 6, 7]
    assert again.plans[0].sequences == first.plans[5].sequences


def test_steps_behind_the_stop_are_not_placed(tmp_path):
    [found] = commit(committer(make_job(tmp_path)), stop=3)
    assert ([p.step for p in found.plans], found.next) == ([0, 1, 2], 8)


def test_a_recorded_segment_that_is_no_longer_what_the_sources_give_is_refused(tmp_path):
    job = make_job(tmp_path)
    commit(committer(job))
    other = replace(job, mix=replace(job.mix, seed=99))
    with pytest.raises(Refused, match=r"segment 0 \(from step 0\) holds other sequences") as caught:
        commit(committer(other, 2))
    assert caught.value.reason == "StreamChanged"


def test_a_phase_added_later_leaves_the_recorded_steps_as_they_are(tmp_path):
    job = make_job(tmp_path)
    [before] = commit(committer(job))
    phase = PhaseConfig(from_step=4, weights={"docs": 1})
    first, second = commit(committer(replace(job, mix=replace(job.mix, phases=(phase,))), 2), 2)
    assert [p.sequences for p in first.plans] == [p.sequences for p in before.plans]
    assert {s.source for p in second.plans for s in p.sequences} == {"docs"}


def test_a_coordinator_that_was_superseded_stops_committing(tmp_path):
    job = make_job(tmp_path)
    old = committer(job)
    committer(job, 2)
    with pytest.raises(Stale, match="another coordinator has created generation 2"):
        commit(old)


def test_a_generation_number_can_be_taken_once(tmp_path):
    log = PlanLog(store_at(tmp_path))
    record = next_generation(make_job(tmp_path), 1, "me", agents(1), (), at_checkpoint(make_job(tmp_path), None))
    assert log.create_generation(record)
    assert not log.create_generation(replace(record, author="another"))
    assert (log.last_generation(), log.generation(1)) == (1, record)
    assert isinstance(log.generation(1), Generation)


def store_at(folder) -> Store:
    return open_store(f"file://{folder}/store", create=True)


def test_the_end_of_the_data_is_known_when_it_is_committed(tmp_path):
    found = commit_to_end(committer(in_one_pass(make_job(tmp_path))))[-1]
    assert found.end == found.plans[-1].step + 1


def in_one_pass(job: JobConfig) -> JobConfig:
    """Each document is trained on once."""
    return replace(job, mix=replace(job.mix, sources=tuple(replace(s, max_passes=1) for s in job.mix.sources)))


def commit_to_end(c: Committer) -> list[Committed]:
    """All commits until the data ends."""
    found = [c.commit(initial_cursor(c.job.mix), 1000)]
    while found[-1].end is None:
        found.append(c.commit(found[-1].cursors[found[-1].next], 1000))
    return found


def test_a_cursor_that_differs_from_the_recorded_one_of_its_step_is_refused(tmp_path):
    job = make_job(tmp_path)
    [first] = commit(committer(job))
    other = replace(first.cursors[5], offset=first.cursors[5].offset + 1)
    with pytest.raises(Refused, match="holds other sequences"):
        committer(job, 2).commit(other, 100)


def test_placements_before_a_segment_are_those_of_all_generations_with_all_their_parts(tmp_path):
    store = open_store(f"file://{tmp_path}", create=True)
    keys = [placement_key(g, segment, part) for g in (1, 12) for segment in (4, 5, 6) for part in (0, 1)]
    for key in (*keys, "log/placements/00000001/notes.txt", membership_key(4)):
        store.put(key, b"x")
    assert sorted(PlanLog(store).placements_before(5)) == sorted(key for key in keys if "/00000004" in key)
    assert PlanLog(store).placements_before(0) == []


def test_a_coordinator_that_adopts_a_generation_in_a_segment_reads_its_placements_by_step(tmp_path):
    c = committer(make_job(tmp_path))
    [first] = commit(c)
    assert c.commit(first.cursors[5], 100).plans == first.plans[5:]


class EndsWithoutLabel:
    """A stream whose step 2 is its last and has no label."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def under(self, _: object) -> EndsWithoutLabel:
        return self

    def advance(self, cursor):
        membership, after = self._stream.advance(cursor)
        last = cursor.step == 2
        return (replace(membership, sequences=(), exhausted=True) if last else membership), after


def test_a_last_step_without_a_label_is_neither_placed_nor_run(tmp_path):
    c = committer(make_job(tmp_path))
    found = Committer(c.job, c.log, c.mixes, EndsWithoutLabel(c.stream), c.generation, c.place).commit(
        initial_cursor(c.job.mix), 100
    )
    assert ([p.step for p in found.plans], found.end) == ([0, 1], 2)


def test_a_segment_that_another_coordinator_claims_first_counts_and_is_verified(tmp_path):
    c = committer(make_job(tmp_path))
    [first] = commit(c)
    c.log.membership = lambda _: None  # read before the other coordinator's claim
    again = Committer(c.job, c.log, c.mixes, c.stream, c.generation, c.place).commit(initial_cursor(c.job.mix), 100)
    assert again == first
    other = replace(c.job, mix=replace(c.job.mix, seed=99))
    with pytest.raises(Refused, match="holds other sequences"):
        Committer(other, c.log, c.mixes, stream_of(other), c.generation, c.place).commit(initial_cursor(other.mix), 100)


def evaluated_job(folder, every: int = 3, **changes):
    return replace(make_job(folder), evaluation=EvaluationConfig(every_steps=every, tokens=500), **changes)


def test_an_evaluation_follows_every_third_step_and_the_last_one_with_the_same_sequences(tmp_path):
    job = evaluated_job(tmp_path, stop_steps=8)
    [found] = commit(committer(job), stop=8)
    assert [p.step for p in found.plans if p.evaluation] == [2, 5, 7]
    assert len({p.evaluation.sequences for p in found.plans if p.evaluation}) == 1
    held_out = found.plans[2].evaluation
    assert (held_out.tokens, held_out.labels) == (500, sum(s.labels for s in held_out.sequences))


def rings_in(orders: list[str]) -> tuple[Layout, Placement]:
    """Two rings over two replicas, each of which has its own order of operations."""
    layout = layout_of_shapes([((2, 1),)] * 2)
    tasks = tuple(Task(i, "ring", (0, 1), tuple(ring_slices([i], [8] * 2, (0, 1)))) for i in range(2))
    lists = tuple(
        StageOperations(r, 0, tuple(Operation(o[0], int(o[1])) for o in text.split())) for r, text in enumerate(orders)
    )
    return layout, placement_of(layout, tasks, lists)


def test_an_evaluation_whose_forwards_would_wait_for_each_other_is_never_committed(tmp_path):
    """The validator has seen the lists with their backwards; what runs has none."""
    layout, placement = rings_in(["F0 B0 F1 B1", "F1 B1 F0 B0"])
    job = evaluated_job(tmp_path, every=1)
    stuck = dataclasses.replace(committer(job), place=in_turn(lambda *_: placement, layout, job))
    with pytest.raises(AssertionError, match="evaluation: hang: replica 0 waits in F of task 0"):
        commit(stuck)


def test_backwards_that_no_evaluation_runs_do_not_count_in_whether_it_hangs():
    layout, placement = rings_in(["F0 F1 B0 B1", "F0 F1 B1 B0"])
    check_forwards(placement, layout)


def test_an_evaluation_has_no_waves_though_the_steps_of_its_balance_have(tmp_path):
    """Ranks pass the barriers of a step between its waves; behind the step there are none."""
    job = evaluated_job(tmp_path)
    small = replace(job.parallelism, balance="Waves", tokens_per_replica=64, max_degree=2)
    [found] = commit(committer(replace(job, parallelism=small, batch=replace(job.batch, max_sequence_tokens=128))))
    assert any(task.wave for task in found.plans[2].tasks)
    assert [p.waves for p in found.plans] == [len({task.wave for task in p.tasks}) for p in found.plans]
    assert {p.waves for p in commit(committer(job, 2))[0].plans} == {1}, "those of a balance without waves have one"
    assert {task.wave for task in found.plans[2].evaluation.tasks} == {msgspec.UNSET}


def test_a_job_that_holds_out_no_tokens_has_an_evaluation_behind_no_step(tmp_path):
    job = make_job(tmp_path, stop_steps=8)
    assert not any(is_due(job, step, 8) for step in range(9))


def test_an_evaluation_is_numbered_behind_its_step_and_runs_forward_only(tmp_path):
    [found] = commit(committer(evaluated_job(tmp_path)))
    plan = found.plans[2]
    evaluation, first = plan.evaluation, len(plan.tasks)
    assert [t.index for t in evaluation.tasks] == list(range(first, first + len(evaluation.tasks)))
    placed = {position for t in evaluation.tasks for s in t.slices for position in [s.sequence]}
    assert placed == set(range(evaluation.first, evaluation.first + len(evaluation.sequences)))
    assert evaluation.first == len(plan.sequences)
    listed = [o for stage in evaluation.operations for o in stage.operations]
    assert {o.kind for o in listed} == {"F"}
    assert {o.task for o in listed} == {t.index for t in evaluation.tasks}
    members = {t.index: set(t.replicas) for t in evaluation.tasks}
    ran = {
        index: {s.replica for s in evaluation.operations if any(o.task == index for o in s.operations)}
        for index in members
    }
    assert ran == members


def test_no_held_out_document_is_in_a_step(tmp_path):
    job = evaluated_job(tmp_path)
    plans = [p for found in commit(committer(job), 6) for p in found.plans]
    held_out = {(s.source, s.index) for s in plans[2].evaluation.sequences}
    assert held_out.isdisjoint((s.source, s.index) for p in plans for s in p.sequences)


def test_a_plan_without_an_evaluation_has_the_digest_of_before_and_one_with_it_another(tmp_path):
    [found] = commit(committer(evaluated_job(tmp_path)))
    plan = found.plans[2]
    content = (plan.sequences, plan.tasks, plan.operations, plan.labels)
    assert found.plans[1].digest == digest_of(found.plans[1])
    assert plan.digest != digest_of(plan) == hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def digest_of(plan) -> str:
    return step_plan(plan.generation, Membership(plan.step, plan.sequences, None), plan).digest


def test_a_coordinator_that_adopts_a_generation_reads_the_recorded_placement_of_the_evaluation(tmp_path):
    c = committer(evaluated_job(tmp_path))
    [first] = commit(c)
    assert with_reversed_tasks(c).commit(first.cursors[5], 100).plans == first.plans[5:]


def with_reversed_tasks(c: Committer) -> Committer:
    """One whose own placements would have the tasks in another order."""

    def reversed_tasks(steps, is_late, speeds):
        found = c.place(steps, is_late, speeds).placements
        return Placed({step: replace(p, tasks=p.tasks[::-1]) for step, p in found.items()})

    return dataclasses.replace(c, place=reversed_tasks)


def test_the_data_end_with_an_evaluation(tmp_path):
    found = commit_to_end(committer(in_one_pass(evaluated_job(tmp_path, every=1000))))[-1]
    assert [p.evaluation is not None for p in found.plans] == [False] * (len(found.plans) - 1) + [True]


@pytest.mark.parametrize("long", range(8))
def test_a_step_of_ends_alone_behind_the_last_one_leaves_its_evaluation(tmp_path, long):
    """In steps of one token the data ends with such a step: within a segment, and once as the first of its segment."""
    batch = BatchConfig(tokens_per_step=1, max_sequence_tokens=1)
    job = evaluated_job(tmp_path, every=1000, batch=batch, stop_steps=1000)
    once = in_one_pass(job)
    lengths = {s.name: [9] * 7 + [20 + (long if s is once.mix.sources[0] else 0)] for s in once.mix.sources}
    views = {
        name: SourceView(name, np.array([8]), lambda b, mine=mine: np.array(mine)) for name, mine in lengths.items()
    }
    held_out = hold_out(once.mix, once.batch, views, 1)
    c = dataclasses.replace(committer(once), stream=Stream(once.mix, once.batch, views, held_out=held_out))
    found = commit_to_end(c)
    plans = [plan for each in found for plan in each.plans]
    assert (len(plans), [p.step for p in plans if p.evaluation]) == (found[-1].end, [found[-1].end - 1])
    last = plans[-1].step
    cursor = next(each.cursors[last] for each in found if last in each.cursors)
    [again] = dataclasses.replace(committer(job, 2), stream=c.stream).commit(cursor, 1000).plans
    assert again.evaluation, "the mix that an edit gives more passes was another one when the step was recorded"


def test_a_segment_that_is_too_large_for_an_object_is_recorded_in_parts_and_read_from_them(tmp_path):
    job = make_job(tmp_path)
    mine = committer(job)
    [whole] = commit(mine)
    size = len(open_store(job.checkpoint.uri).get(placement_key(1, 0)))
    parted = committer(job, 2)
    parted.log.largest = size // 2
    [found] = commit(parted)
    assert [(p.step, p.tasks, p.operations) for p in found.plans] == [
        (p.step, p.tasks, p.operations) for p in whole.plans
    ]
    objects = list(open_store(job.checkpoint.uri).list("log/placements/00000002/"))
    assert [o.path for o in objects] == sorted(placement_key(2, 0, part) for part in range(len(objects)))
    assert len(objects) > 1
    assert max(o.size for o in objects) <= size // 2


def test_the_evaluation_of_a_segment_in_parts_is_that_of_its_first_part(tmp_path):
    """Later parts record none, and a coordinator that would place it in another way follows the first one."""
    c = committer(evaluated_job(tmp_path))
    c.log.largest = 1
    [first] = commit(c)
    assert [p.step for p in first.plans if p.evaluation] == [2, 5]
    parts = range(len(open_store(c.job.checkpoint.uri).list("log/placements/00000001/")))
    recorded = [c.log.claim_placement(PlacementSegment(1, 0, 0, ()), part) for part in parts]
    assert [r.evaluation is not None for r in recorded] == [True, *[False] * (len(first.plans) - 1)]
    assert with_reversed_tasks(c).commit(first.cursors[5], 100).plans == first.plans[5:]


@pytest.mark.parametrize("largest", [1, 1_000_000])
@pytest.mark.parametrize("start", [0, 5])
def test_a_coordinator_that_cuts_a_segment_otherwise_follows_the_parts_that_are_there(tmp_path, largest, start):
    """It would place the steps in another way: the recorded placements count."""
    job = make_job(tmp_path)
    mine = committer(job)
    mine.log.largest = 700
    [recorded] = commit(mine)
    other = replace_place(committer(job), job)
    other.log.largest = largest
    found = other.commit(recorded.cursors[start], 100)
    assert [(p.step, p.tasks) for p in found.plans] == [(p.step, p.tasks) for p in recorded.plans[start:]]
    assert len(open_store(job.checkpoint.uri).list("log/placements/")) == len(recorded_parts(job))


def recorded_parts(job) -> list[str]:
    return [
        placement_key(1, 0, part)
        for part in range(8)
        if open_store(job.checkpoint.uri).exists(placement_key(1, 0, part))
    ]


def replace_place(c: Committer, job) -> Committer:
    three = next_generation(job, 1, "me", agents(3), (), at_checkpoint(job, None)).layout
    return Committer(
        c.job,
        c.log,
        c.mixes,
        c.stream,
        c.generation,
        in_turn(place_step, three, job),
    )
