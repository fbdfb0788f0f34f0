"""Edits of the mix: recorded once, in force from the first step without a plan, the same after any restart."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.config import JobConfig, MixConfig, PhaseConfig
from coxswain.errors import Refused
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Cursor, MixRecord, Sequence
from coxswain.planlog import MembershipSegment, membership_key, mix_key
from coxswain.wire import JobReport
from coxswain_coordinator.planning.committer import SEGMENT_STEPS, Committer
from coxswain_coordinator.planning.mix_edits import MixEdits
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.world.formation import digest_of
from coxswain_link.store import open_store
from tests.draws import draws
from tests.unit.coordinator_fakes import cluster, make_job, make_source
from tests.unit.test_coordinator_committer import committer

SEGMENTS = 5


def edited(job: JobConfig, code: int, docs: int, phases: tuple[PhaseConfig, ...] = (), passes: int = 0) -> JobConfig:
    sources = (make_source("code", code, passes), make_source("docs", docs, passes))
    return replace(job, mix=replace(job.mix, sources=sources, phases=phases))


class Run:
    """A run whose coordinator may be edited and restarted between commits."""

    def __init__(self, folder: Path, most: int = SEGMENT_STEPS) -> None:
        """`most`: steps that one commit plans."""
        self.job, self.generation, self.most = make_job(folder, stop_steps=1000), 0, most
        self.steps: dict[int, tuple[Sequence, ...]] = {}
        self.cursors: dict[int, Cursor] = {0: initial_cursor(self.job.mix)}
        self.restart(0)

    def restart(self, step: int) -> None:
        """A new coordinator, from the cursor before `step`, with the mix as it is now."""
        self.generation += 1
        self.committer: Committer = committer(self.job, self.generation)
        self.at = step

    def edit(self, job: JobConfig) -> str:
        self.job = job
        return self.committer.mixes.offer(job.mix)

    def commit(self) -> None:
        found = self.committer.commit(self.cursors[self.at], 1000, most=self.most)
        for plan in found.plans:
            assert self.steps.setdefault(plan.step, plan.sequences) == plan.sequences, f"step {plan.step} changed"
        self.cursors |= found.cursors
        self.at = found.next

    def reach(self, step: int) -> None:
        while self.at < step:
            self.commit()


def sources_of(run: Run, steps: range) -> set[str]:
    return {s.source for step in steps for s in run.steps[step]}


def test_an_edit_leaves_planned_steps_and_counts_from_the_first_step_without_a_plan(tmp_path):
    run = Run(tmp_path)
    run.reach(16)
    assert run.edit(edited(run.job, 0, 1)) == "weight of code 700 -> 0, weight of docs 300 -> 1"
    run.reach(32)
    assert sources_of(run, range(16)) == {"code", "docs"}
    assert sources_of(run, range(16, 32)) == {"docs"}
    assert [run.cursors[step].mix for step in (16, 17, 32)] == [0, 1, 1]
    log = run.committer.log
    assert [log.membership(segment).mix for segment in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(("planned", "first"), [(1, 8), (3, 8), (7, 8), (8, 8), (9, 16)])
def test_where_plans_are_made_step_by_step_an_edit_counts_from_the_next_multiple_of_eight(tmp_path, planned, first):
    """As under Rebalance, with two steps planned behind the one that runs: three to ten steps ahead of that."""
    run = Run(tmp_path, most=1)
    run.reach(planned)
    run.edit(edited(run.job, 0, 1))
    assert run.committer.mixes.first_step() == first
    run.reach(first + 8)
    assert [sources_of(run, range(first - 8, first)), sources_of(run, range(first, first + 8))] == [
        {"code", "docs"}, {"docs"},
    ]  # fmt: skip


def test_a_mix_that_is_what_the_latest_record_says_is_not_recorded_again(tmp_path):
    run = Run(tmp_path)
    run.edit(edited(run.job, 1, 2))
    assert run.edit(run.job) == ""
    run.restart(0)
    assert run.committer.mixes.latest.number == 1
    assert run.committer.log.mix(2) is None


PHASES = st.lists(
    st.builds(lambda step, w: PhaseConfig(from_step=step, weights={"code": w, "docs": 1}), st.integers(0, 40), st.integers(0, 3)),
    max_size=2, unique_by=lambda p: p.from_step,
).map(lambda found: tuple(sorted(found, key=lambda p: p.from_step)))  # fmt: skip
EDITS = st.dictionaries(
    st.integers(0, SEGMENTS - 1), st.tuples(st.integers(0, 9), st.integers(1, 9), PHASES, st.integers(0, 2)), max_size=3
)
RESTARTS = st.lists(st.tuples(st.integers(0, SEGMENTS * 8), st.floats(0, 1)), max_size=4)


@settings(max_examples=draws(8, 40))
@given(edits=EDITS, restarts=RESTARTS)
def test_the_same_edits_give_the_same_steps_whatever_coordinator_restarts_from_wherever(
    tmp_path_factory, edits, restarts
):
    plain, disturbed = Run(tmp_path_factory.mktemp("a")), Run(tmp_path_factory.mktemp("b"))
    pending = sorted(restarts)
    for segment in range(SEGMENTS):
        for run in (plain, disturbed):
            if segment in edits:
                run.edit(edited(run.job, *edits[segment]))
        while pending and pending[0][0] < (segment + 1) * 8:
            disturbed.restart(int(pending.pop(0)[1] * disturbed.at))
            disturbed.reach(segment * 8)
        plain.commit()
        disturbed.commit()
        if plain.at < (segment + 1) * 8:  # the data has ended
            break
    assert disturbed.steps == plain.steps
    assert disturbed.at == plain.at


def test_phases_that_have_begun_may_be_taken_away(tmp_path):
    run = Run(tmp_path)
    run.edit(edited(run.job, 700, 300, (PhaseConfig(from_step=4, weights={"docs": 1}),)))
    run.reach(16)
    assert sources_of(run, range(8, 16)) == {"docs"}
    assert run.edit(edited(run.job, 700, 300)) == "phases 1 -> 0"
    run.restart(8)
    run.reach(32)
    assert sources_of(run, range(16, 32)) == {"code", "docs"}


def test_another_weight_of_a_phase_is_an_edit_although_there_are_as_many_phases(tmp_path):
    run = Run(tmp_path)
    run.edit(edited(run.job, 700, 300, (PhaseConfig(from_step=0, weights={"docs": 1}),)))
    run.reach(8)
    assert run.edit(edited(run.job, 700, 300, (PhaseConfig(from_step=0, weights={"code": 1}),)))
    run.reach(16)
    assert (sources_of(run, range(8)), sources_of(run, range(8, 16))) == ({"docs"}, {"code"})


def test_a_source_that_had_left_comes_back_with_more_passes(tmp_path):
    run = Run(tmp_path)
    once = replace(edited(run.job, 9, 1).mix, sources=(make_source("code", 9, 1), make_source("docs", 1)))
    run.edit(replace(run.job, mix=once))
    while not run.cursors[run.at].sources[0].exhausted:
        run.commit()
    left = run.at
    run.edit(edited(run.job, 9, 1))
    run.commit()
    assert {s.epoch for s in run.steps[left] if s.source == "code"} == {1}


def test_of_two_edits_at_once_both_are_recorded_one_after_the_other(tmp_path):
    run = Run(tmp_path)
    late, early = MixHistory(run.committer.log), MixHistory(run.committer.log)
    late.offer(run.job.mix)
    early.offer(edited(run.job, 1, 2).mix)
    assert late.offer(edited(run.job, 3, 4).mix) == "weight of code 1 -> 3, weight of docs 2 -> 4"
    assert [late.record(n).weights for n in range(3)] == [
        {"code": 700, "docs": 300}, {"code": 1, "docs": 2}, {"code": 3, "docs": 4},
    ]  # fmt: skip
    assert early.record(2) == late.latest


def test_an_edit_whose_record_another_one_takes_meanwhile_is_recorded_behind_it(tmp_path):
    run = Run(tmp_path)
    log = PlanLog(open_store(run.job.checkpoint.uri))
    late, early, claim = MixHistory(log), MixHistory(run.committer.log), log.claim_mix
    late.offer(run.job.mix)

    def second(record: MixRecord) -> MixRecord:
        early.offer(edited(run.job, 1, 2).mix)
        return claim(record)

    log.claim_mix = second  # type: ignore[method-assign]
    assert late.offer(edited(run.job, 3, 4).mix) == "weight of code 1 -> 3, weight of docs 2 -> 4"
    assert (late.latest.number, late.latest.weights) == (2, {"code": 3, "docs": 4})


def test_a_new_coordinator_compares_the_mix_with_the_newest_record_and_not_with_the_first(tmp_path):
    job, log = make_job(tmp_path), PlanLog(open_store(make_job(tmp_path).checkpoint.uri, create=True))
    before, after = job.mix, edited(job, 1, 2).mix
    first, same, back = (MixHistory(log) for _ in range(3))
    assert (first.offer(before), bool(first.offer(after))) == ("", True)
    assert (same.offer(after), same.latest.number) == ("", 1)
    assert (bool(back.offer(before)), back.latest.number) == (True, 2)


def test_a_log_without_records_goes_on_with_the_phases_of_its_segments(tmp_path):
    run = Run(tmp_path)
    phased = edited(run.job, 700, 300, (PhaseConfig(from_step=4, weights={"docs": 1}),))
    run.edit(phased)
    run.reach(16)
    store = open_store(run.job.checkpoint.uri)
    for number in range(2):  # as a release without records has left it
        store.delete(mix_key(number))
        segment = run.committer.log.membership(number)
        old = replace(
            segment, mix=0, after=replace(segment.after, mix=0),
            memberships=tuple(replace(m, cursor=replace(m.cursor, mix=0)) for m in segment.memberships),
        )  # fmt: skip
        rewrite(run, old)
    before = {step: run.steps[step] for step in range(16)}
    run.cursors = {0: initial_cursor(phased.mix)}
    run.restart(0)
    run.reach(24)
    assert {step: run.steps[step] for step in range(16)} == before
    assert run.committer.mixes.latest == MixRecord(
        0, {"code": 700, "docs": 300}, {"code": 0, "docs": 0}, phased.mix.phases
    )
    store.delete(mix_key(0))
    history = MixHistory(run.committer.log)
    assert history.offer(replace(phased.mix, phases=())), "the phase is gone"
    assert [history.record(number).phases for number in range(2)] == [phased.mix.phases, ()]


def rewrite(run: Run, segment: MembershipSegment) -> None:
    store = open_store(run.job.checkpoint.uri)
    store.delete(membership_key(segment.segment))
    run.committer.log.claim_membership(segment)


def test_a_record_that_a_segment_names_and_that_is_gone_is_refused_by_its_key(tmp_path):
    run = Run(tmp_path)
    run.edit(edited(run.job, 1, 2))
    run.commit()
    open_store(run.job.checkpoint.uri).delete(mix_key(1))
    with pytest.raises(Refused, match=f"{mix_key(1)} is missing") as caught:
        MixHistory(PlanLog(open_store(run.job.checkpoint.uri))).record(1)
    assert caught.value.reason == "TornPlanLog"


def test_a_world_does_not_depend_on_what_is_recorded_of_the_mix(tmp_path):
    job = make_job(tmp_path)
    assert digest_of(job) == digest_of(edited(job, 1, 2, (PhaseConfig(from_step=4, weights={"docs": 1}),), passes=2))
    assert digest_of(job) != digest_of(replace(job, mix=replace(job.mix, seed=8)))


# --- the coordinator ------------------------------------------------------------------------------------------------


async def test_an_edit_while_the_job_runs_is_recorded_reported_and_followed(tmp_path):
    job = make_job(tmp_path, stop_steps=40)
    asked: list[MixConfig | None] = [None, edited(job, 1, 0).mix]
    async with cluster(job, tmp_path, edits=lambda: asked.pop(0) if asked else None) as c:
        report = await c.play()
    (event,) = [e for e in report.events if e.reason == "MixChanged"]
    assert event.message == "weight of code 700 -> 1, weight of docs 300 -> 0; from step 8 on (mix record 1)"
    drawn = {
        step: {name for name, tokens in line.tokens_by_source.items() if tokens} for step, line in c.steps().items()
    }
    assert drawn[7] == {"code", "docs"}
    assert all(drawn[step] == {"code"} for step in range(8, 40))
    assert {s.name: s.weight for s in report.sources} == {"code": 1, "docs": 0}


@pytest.mark.parametrize("later", [False, True], ids=["before its first world", "within it"])
async def test_an_edit_that_a_later_coordinator_finds_is_reported_from_the_first_step_that_has_no_plan(tmp_path, later):
    """As a repeated `cox run` has it: the plans of the run before reach far beyond the step that it resumes at."""
    job = make_job(tmp_path, stop_steps=40)
    async with cluster(replace(job, stop_steps=20), tmp_path) as c:  # which bounds what is planned ahead
        await c.play_until(4)
    planned = MixHistory(PlanLog(open_store(job.checkpoint.uri))).first_step()
    change = edited(job, 1, 0)
    asked = [change.mix] if later else []
    async with cluster(
        job if later else change, tmp_path, instance="two", edits=lambda: asked.pop(0) if asked else None
    ) as c:
        (message,) = of_reason(await c.play(), "MixChanged")
        drawn = {step: set(line.tokens_by_source) for step, line in c.steps().items()}
    assert 4 < planned < 40
    assert message.endswith(f"; from step {planned} on (mix record 1)")
    assert any("docs" in drawn[step] for step in range(4, planned))
    assert all(drawn[step] == {"code"} for step in range(planned, 40))


# --- job.json -------------------------------------------------------------------------------------------------------


def write(path: Path, job: JobConfig) -> None:
    """As a ConfigMap's volume does it: all at once."""
    other = path.with_name("other")
    other.write_bytes(msgspec.json.encode(job))
    other.replace(path)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    write(tmp_path / "job.json", make_job(tmp_path))
    return tmp_path / "job.json"


def test_the_mix_of_a_rewritten_file_is_returned_once(tmp_path, job_file):
    edits, job = MixEdits(job_file, make_job(tmp_path)), make_job(tmp_path)
    assert edits() is None
    write(job_file, edited(job, 1, 2))
    assert edits() == edited(job, 1, 2).mix
    assert edits() is None


@pytest.mark.parametrize("by", ["another file", "another time", "another size"])
def test_an_edit_is_seen_where_its_file_differs_from_the_one_before_in_one_way_alone(tmp_path, job_file, by):
    """A volume may give both files one time, an editor may write in place, and a file system's times may be coarse."""
    job = make_job(tmp_path)
    write(job_file, edited(job, 1, 2))
    edits, before = MixEdits(job_file, job), job_file.stat()
    change = edited(job, 1, 22 if by == "another size" else 3)
    if by == "another file":
        write(job_file, change)
    else:
        job_file.write_bytes(msgspec.json.encode(change))
    os.utime(job_file, ns=(before.st_atime_ns, before.st_mtime_ns + (by == "another time")))
    after = job_file.stat()
    differs = (after.st_ino != before.st_ino, after.st_mtime_ns != before.st_mtime_ns, after.st_size != before.st_size)
    assert differs == (by == "another file", by == "another time", by == "another size")
    assert edits() == change.mix


@pytest.mark.parametrize("change", ["torn", "gone", "seed", "batch"])
def test_a_file_that_cannot_be_followed_is_left_to_the_next_attempt(tmp_path, job_file, change):
    job = make_job(tmp_path)
    edits = MixEdits(job_file, job)
    if change == "torn":
        job_file.write_bytes(b"{")
    elif change == "gone":
        job_file.unlink()
    elif change == "seed":
        write(job_file, replace(job, mix=replace(edited(job, 1, 2).mix, seed=8)))
    else:
        write(job_file, replace(edited(job, 1, 2), batch=replace(job.batch, tokens_per_step=1024)))
    assert edits() is None
    write(job_file, edited(job, 3, 4))
    assert edits() == edited(job, 3, 4).mix


def of_reason(report: JobReport, reason: str) -> list[str]:
    return [e.message for e in report.events if e.reason == reason]


async def test_a_source_that_has_used_up_its_passes_is_named_with_the_step_in_which_it_left(tmp_path):
    job = make_job(tmp_path)
    sources = (job.mix.sources[0], replace(job.mix.sources[1], max_passes=1))
    async with cluster(replace(job, mix=replace(job.mix, sources=sources), stop_steps=60), tmp_path) as c:
        report = await c.play()
        (left,) = of_reason(report, "SourceExhausted")
        last = max(step for step, line in c.steps().items() if line.tokens_by_source.get("docs"))
    assert left == f"docs has left the mix in step {last}: passes done 1, and its maxPasses allows no more"


async def test_a_source_whose_limit_an_edit_lowers_below_what_it_has_done_leaves_with_the_passes_that_it_has_done(
    tmp_path,
):
    job = edited(make_job(tmp_path, stop_steps=60), 1, 1000)
    asked: list[MixConfig | None] = [*[None] * 4, edited(job, 1, 1000, passes=1).mix]
    async with cluster(job, tmp_path, edits=lambda: asked.pop(0) if asked else None) as c:
        report = await c.play()
    (edit,) = of_reason(report, "MixChanged")
    step = edit.partition("from step ")[2].partition(" ")[0]
    left = of_reason(report, "SourceExhausted")[0]
    assert re.fullmatch(
        rf"docs has left the mix in step {step}: passes done [2-9], and its maxPasses allows no more", left
    )


async def test_a_mix_without_limits_never_names_a_source_as_used_up(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        assert of_reason(await c.play(), "SourceExhausted") == []
