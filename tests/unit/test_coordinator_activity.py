"""What the metric of a job's activity says: one thing is under way at a time, and long saves and evaluations are named."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.metrics import METRICS
from coxswain.wire import Evaluation, Finished, ShardsSaved
from coxswain_coordinator.world.activity import Activity, activity_of, show_activity
from tests.unit.coordinator_samples import committed, session
from tests.unit.test_coordinator_figures import Run


@pytest.fixture
def run(tmp_path) -> Run:
    found = Run(tmp_path)
    show_activity(found.metrics["coxswain_activity"], found.state)
    return found


def shown(run: Run) -> list[str]:
    """The activities whose series is 1."""
    return re.findall(r'^coxswain_activity\{activity="(\w+)"\} 1.0$', run.metrics.exposition().decode(), re.MULTILINE)


def test_a_world_starts_until_its_first_step_is_closed_and_then_does_steps(run):
    assert shown(run) == ["starting"]
    run.step(0)
    assert shown(run) == ["step"]


def test_a_step_that_an_evaluation_follows_is_an_evaluation(run):
    run.step(0)
    evaluation = Evaluation((), (), (), 0, 0)
    run.session.add(committed(1, evaluation=evaluation))
    assert shown(run) == ["evaluation"]
    run.step(1)
    assert shown(run) == ["step"]


def test_a_save_that_the_next_step_waits_for_is_a_save_until_every_rank_has_written(run):
    job = run.state.job
    run.enter(session(replace(job, checkpoint=replace(job.checkpoint, every_steps=1))))
    run.step(0)
    run.session.directive(1)
    run.step(1)
    run.session.directive(2)
    assert shown(run) == ["save"]
    for rank in (0, 1):
        run.state.add_saved(ShardsSaved(1, 1, rank, 2, (), 0.5))
    assert shown(run) == ["step"]


def test_a_save_that_ends_a_world_is_a_save_while_ranks_write_and_waits_for_the_coordinator_then(run):
    """No limit holds for the coordinator's part: a store that takes no manifest must not pass for a long save."""
    run.step(0)
    run.session.request_move("trainer-2 shall leave", saves=True)
    assert run.session.directive(1).checkpoint
    assert shown(run) == ["save"]
    for rank in (0, 1):
        run.state.add_saved(ShardsSaved(1, 1, rank, 2, (), 0.5, "Moved"))
    assert shown(run) == ["waiting"]


def test_a_job_without_a_world_waits_and_one_that_has_ended_does_nothing(run):
    run.step(0)
    run.state.mark_world_lost("trainer-1 is gone")
    assert shown(run) == ["waiting"]
    run.state.finish(Finished(Exit.DONE, "StopReached", "all steps are done"))
    assert activity_of(run.state) is None
    assert shown(run) == []


def test_a_job_indexes_once_its_loaders_have_shares(run):
    run.state.index_progress.index = None
    assert shown(run) == ["waiting"]
    run.state.index_progress.assign(["loader-0"])
    assert shown(run) == ["indexing"]


def test_the_table_of_metrics_knows_every_activity():
    (metric,) = (metric for metric in METRICS if metric.name == "coxswain_activity")
    assert metric.known == tuple((activity,) for activity in get_args(Activity))
