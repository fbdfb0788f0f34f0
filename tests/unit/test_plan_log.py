"""The plan log: which coordinator holds a generation, which record is the newest, and what is recorded once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from coxswain.config import EvaluationConfig
from coxswain.errors import Stale
from coxswain.ladder.lead import PLANNED
from coxswain.membership.held_out import hold_out
from coxswain.membership.order import SourceView
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.planlog import Generation, placement_key
from coxswain_coordinator.planning.committer import SEGMENT_STEPS, steps_ahead
from coxswain_coordinator.planning.placers import IsLate, Placed, Speeds
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.world.formation import at_checkpoint, next_generation
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents
from tests.unit.test_coordinator_committer import commit, commit_to_end, committer, in_one_pass


@pytest.fixture
def log_of(tmp_path: Path) -> Callable[[], PlanLog]:
    """Another coordinator's view of one log, each time."""
    return lambda: PlanLog(open_store(make_job(tmp_path).checkpoint.uri, create=True))


def generation(tmp_path: Path, number: int, author: str) -> Generation:
    job = make_job(tmp_path)
    return next_generation(job, number, author, agents(2), (), at_checkpoint(job, None))


def test_a_takeover_of_a_new_generation_fences_one_that_had_taken_over_the_generation_before(
    tmp_path: Path, log_of: Callable[[], PlanLog]
) -> None:
    """Its number begins again at one with each generation."""
    first, second, third = log_of(), log_of(), log_of()
    assert first.create_generation(generation(tmp_path, 1, "first"))
    assert second.take_over(1, "second")
    assert second.create_generation(generation(tmp_path, 2, "second"))
    second.check_current(2)
    assert third.take_over(2, "third")
    with pytest.raises(Stale, match="taken over generation 2"):
        second.check_current(2)
    third.check_current(2)


def test_a_coordinator_that_has_yet_to_take_over_is_fenced_by_the_next_takeover_and_by_none_before_it(
    tmp_path: Path, log_of: Callable[[], PlanLog]
) -> None:
    """Else the third coordinator of one generation would take itself for the one that was replaced."""
    first, second, third, fourth = log_of(), log_of(), log_of(), log_of()
    assert first.create_generation(generation(tmp_path, 1, "first"))
    assert second.take_over(1, "second")
    assert third.read_held() == 1
    third.check_held()
    assert fourth.take_over(1, "fourth")
    with pytest.raises(Stale, match="taken over generation 1"):
        third.check_held()


def test_the_newest_membership_may_be_the_first(tmp_path: Path) -> None:
    c = committer(make_job(tmp_path))
    assert c.log.last_membership() is None
    for segments in (1, 2):
        commit(c, segments)
        newest = c.log.last_membership()
        assert newest is not None
        assert newest.segment == segments - 1


def test_placements_at_equal_speeds_are_recorded_as_earlier_releases_do_it(tmp_path: Path) -> None:
    c = committer(make_job(tmp_path))
    commit(c)
    stored = zstandard.decompress(open_store(c.job.checkpoint.uri).get(placement_key(1, 0)))
    assert b'"placements"' in stored
    assert b"speeds" not in stored


def test_steps_that_are_recorded_are_not_placed_again(tmp_path: Path) -> None:
    c, asked = committer(make_job(tmp_path)), list[list[int]]()

    def counting(wanted: dict[int, list[int]], is_late: IsLate, speeds: Speeds) -> Placed:
        asked.append(sorted(wanted))
        return c.place(wanted, is_late, speeds)

    counted = dataclasses.replace(c, place=counting)
    cursor = initial_cursor(c.job.mix)
    three = counted.commit(cursor, 100, most=3)
    assert ([p.step for p in three.plans], three.next, c.mixes.first_step()) == ([0, 1, 2], 3, 8)
    assert [p.step for p in counted.commit(cursor, 100, most=5).plans] == [0, 1, 2, 3, 4]
    assert asked == [[0, 1, 2], [3, 4]]


def test_a_job_that_plans_around_slow_devices_commits_no_further_than_its_short_lead() -> None:
    assert [steps_ahead(seconds, plans_around=True) for seconds in (0.0, 0.01, 60.0)] == [PLANNED] * 3
    assert steps_ahead(60.0) > PLANNED


def test_an_evaluation_follows_a_last_step_that_is_the_first_of_its_segment_and_not_the_step_before(
    tmp_path: Path,
) -> None:
    """Documents of a step's length each: the data ends with a step that has labels, once behind each place of a segment."""
    ends = set()
    for count in range(12, 20):
        job = in_one_pass(make_job(tmp_path / str(count), evaluation=EvaluationConfig(every_steps=1000, tokens=1)))
        views = {
            s.name: SourceView(s.name, np.array([count]), lambda _, n=count: np.full(n, 128)) for s in job.mix.sources
        }
        stream = Stream(job.mix, job.batch, views, held_out=hold_out(job.mix, job.batch, views, 1))
        found = commit_to_end(dataclasses.replace(committer(job), stream=stream))
        plans = [plan for each in found for plan in each.plans]
        assert plans[-1].labels > 0
        assert [p.step for p in plans if p.evaluation] == [plans[-1].step]
        ends.add(plans[-1].step % SEGMENT_STEPS)
    assert 0 in ends
