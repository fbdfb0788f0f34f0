"""Where the data ends: behind the last phase that has data left, and where a record says so."""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig, PhaseConfig
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Cursor, Sequence
from coxswain_coordinator.planning.committer import Committer, data_ended
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import cluster, make_job, make_source
from tests.unit.test_coordinator_committer import committer

LATER = (PhaseConfig(from_step=10**6, weights={"docs": 1}),)


def curriculum(folder, phases: tuple[PhaseConfig, ...] = LATER) -> JobConfig:
    """One pass over `code`, then one over `docs`."""
    job = make_job(folder, stop_steps=10**7)
    sources = (make_source("code", 1, 1), make_source("docs", 0, 1))
    return replace(job, mix=replace(job.mix, sources=sources, phases=phases))


def run_to_end(c: Committer) -> tuple[dict[int, tuple[Sequence, ...]], int, dict[int, Cursor]]:
    """The sequences of each step, the end, and all cursors."""
    cursor, steps, cursors = initial_cursor(c.job.mix), {}, {}
    while True:
        found = c.commit(cursor, 10**7)
        steps |= {p.step: p.sequences for p in found.plans}
        cursors |= found.cursors
        if found.end is not None:
            return steps, found.end, cursors
        cursor = found.cursors[found.next]


def sources_of(steps: dict[int, tuple[Sequence, ...]]) -> set[str]:
    return {s.source for step in steps.values() for s in step}


def test_a_job_does_not_end_before_a_phase_that_has_data_left(tmp_path):
    short, whole = committer(curriculum(tmp_path / "a", ())), committer(curriculum(tmp_path / "b"))
    (alone, end, _), (both, last, _) = run_to_end(short), run_to_end(whole)
    assert (sources_of(alone), sources_of(both)) == ({"code"}, {"code", "docs"})
    assert end < last == len(both)


def ended_early(job: JobConfig, elsewhere: Path) -> Committer:
    """A log as an earlier release left it: ended with the sources of phase 0, though phase 1 has data."""
    c, alone = committer(job), committer(curriculum(elsewhere, ()))
    run_to_end(alone)
    for segment in takewhile(bool, map(alone.log.membership, count())):
        c.log.claim_membership(replace(segment, phases=msgspec.json.encode(job.mix.phases).decode()))
    return c


def test_a_run_that_an_earlier_release_ended_before_a_phase_is_read_as_it_is_recorded(tmp_path):
    job = curriculum(tmp_path)
    old = ended_early(job, tmp_path / "alone")
    steps, end, cursors = run_to_end(committer(job, 2))
    assert (sources_of(steps), end) == ({"code"}, len(steps))
    assert [data_ended(old.log, step) for step in (0, end - 1, end)] == [False, False, True]
    again = committer(job, 3).commit(cursors[end], 10**7)
    assert (again.plans, again.end) == ((), end)


@pytest.mark.parametrize("steps", [7, 8, 9])
def test_the_end_is_found_in_the_segment_of_the_last_step(tmp_path, steps):
    """Also where the next segment would begin behind it."""
    job = curriculum(tmp_path, ())
    c = committer(replace(job, batch=replace(job.batch, tokens_per_step=-(-tokens(job) // steps))))
    _, end, _ = run_to_end(c)
    assert end == steps
    assert [data_ended(c.log, step) for step in (end - 1, end)] == [False, True]


def test_the_end_is_found_where_the_next_segment_begins_with_a_step_that_is_not_run(tmp_path):
    """What is left for it has no label."""
    job = curriculum(tmp_path, ())
    c = committer(replace(job, batch=replace(job.batch, tokens_per_step=-(-tokens(job) // 9))))
    run_to_end(c)
    found, log = c.log.membership(1), PlanLog(open_store(f"file://{tmp_path}/y", create=True))
    log.claim_membership(replace(found, memberships=(replace(found.memberships[0], sequences=()),)))
    assert [data_ended(each, 8) for each in (c.log, log)] == [False, True]


def tokens(job: JobConfig) -> int:
    _, _, cursors = run_to_end(
        committer(replace(job, checkpoint=replace(job.checkpoint, uri=f"{job.checkpoint.uri}/x")))
    )
    return max(c.offset for c in cursors.values())


async def test_a_stream_that_has_ended_stays_ended_whatever_is_edited(tmp_path):
    job = replace(curriculum(tmp_path, ()), stop_steps=1000)
    async with cluster(job, tmp_path) as c:
        first = await c.play()
    more = replace(job.mix, sources=tuple(replace(s, max_passes=2) for s in job.mix.sources), phases=LATER)
    async with cluster(replace(job, mix=more), tmp_path, instance="two") as c:
        again = await c.coordinator.drive()
    assert first.reason == again.reason == "DataExhausted"
    assert again.message == f"completed {first.checkpoint_step} steps"
