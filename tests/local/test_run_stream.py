"""The same stream, whatever runs it: both digests of every step, over replicas, loaders, resume, kills and stores."""

import os
import signal

import pytest

from coxswain_link.store import open_store
from tests.integration.test_checkpoints_kept import assert_sound
from tests.local.jobs import ENDLESS, STEPS, Footprint, Run, job_objects, wait_for_step

pytestmark = pytest.mark.timeout(240)


def run_in(folder, corpus, **options):
    return Run(folder, job_objects(corpus, f"file://{folder}/checkpoints", **options))


def test_a_run_ends_succeeded_with_a_falling_loss_and_a_checkpoint_at_its_last_step(baseline):
    losses = baseline.losses()
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    assert (baseline.folder / "checkpoints" / "manifests" / f"step-{STEPS:010d}.json").exists()
    assert "Completed" in baseline.events()


@pytest.mark.slow
def test_four_replicas_and_three_loaders_train_on_the_stream_of_one_and_one(tmp_path, corpus, baseline):
    run = run_in(tmp_path, corpus, trainers=4, loaders=3)
    assert run.run() == 0, run.output + run.logs()
    assert_same(run, baseline)


def test_two_replicas_train_on_the_stream_of_one(calm, baseline):
    assert_same(calm, baseline)


def test_a_run_keeps_the_checkpoints_that_its_policy_keeps(calm):
    """The last two, and every fourth."""
    assert assert_sound(open_store(f"file://{calm.folder}/checkpoints")) == [4, 8, 10, 12]


def assert_same(run, baseline):
    assert run.digests() == baseline.digests()
    assert run.losses() == pytest.approx(baseline.losses(), rel=1e-4)


@pytest.mark.slow  # test_run_layouts.py goes on with another layout, with one replica instead of two
def test_a_run_stopped_at_a_step_goes_on_with_another_number_of_replicas(tmp_path, corpus, baseline):
    first = run_in(tmp_path, corpus, trainers=1)
    assert first.run("--until-step", "5") == 0, first.output + first.logs()
    assert max(first.steps()) < STEPS - 1
    second = Run(tmp_path / "again", run_in(tmp_path, corpus, trainers=3, loaders=2).objects)
    assert second.run() == 0, second.output + second.logs()
    joined = first.steps() | second.steps()
    assert [(joined[k]["stream_digest"], joined[k]["delivered_digest"]) for k in sorted(joined)] == baseline.digests()
    assert [joined[k]["loss"] for k in sorted(joined)] == pytest.approx(baseline.losses(), rel=1e-4)


@pytest.mark.slow  # test_run_crash_points.py kills cox between two writes and repeats the command
def test_cox_killed_and_repeated_ends_with_the_same_digests_and_leaves_nothing(tmp_path, corpus, baseline):
    run = run_in(tmp_path, corpus, trainers=2, stop={"steps": ENDLESS})
    cox = run.start()
    wait_for_step(run, cox, 4)
    footprint = Footprint.of(run, cox)
    os.kill(cox.pid, signal.SIGKILL)
    run.finish(cox)
    footprint.assert_gone()
    last = max(STEPS, *run.steps()) + 1
    assert run.run("--until-step", str(last)) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == baseline.digests()
    footprint.assert_gone()


def test_a_finished_run_repeated_prints_its_end_and_trains_nothing(baseline):
    lines = len((baseline.workdir / "steps.jsonl").read_text().splitlines())
    assert baseline.run(deadline=20) == 0
    assert "Completed" in baseline.output
    assert len((baseline.workdir / "steps.jsonl").read_text().splitlines()) == lines
