"""Ctrl-C on a real run: once saves and stops, twice stops at once; the same command resumes."""

import os
import signal

import pytest

from tests.local.jobs import Footprint, Run, job_objects, wait_for_step, wait_until, write_corpus

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def run(tmp_path):
    write_corpus(tmp_path / "corpus")
    return Run(tmp_path, job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints", trainers=1))


def test_ctrl_c_saves_a_checkpoint_and_stops(run):
    cox = run.start()
    wait_for_step(run, cox, 1)
    footprint = Footprint.of(run, cox)
    assert {line.split()[0] for line in footprint.rest()} == {"process", "socket"}  # the eyes are open
    os.kill(cox.pid, signal.SIGINT)
    assert run.finish(cox, 100) == 0, run.output + run.logs()
    done = max(run.steps()) + 1
    assert f"Suspended\n  saved before step {done}\n" in run.output
    assert (run.folder / "checkpoints" / "manifests" / f"step-{done:010d}.json").exists()
    footprint.assert_gone()


def test_ctrl_c_twice_stops_at_once_and_leaves_nothing(run):
    cox = run.start()
    wait_until(lambda: list(run.workdir.glob("logs/*/trainer.log")), "the trainer's pod")
    footprint = Footprint.of(run, cox)
    os.kill(cox.pid, signal.SIGINT)
    wait_until(
        lambda: '"suspend": true' in (run.workdir / "cluster/TrainingJob/default/small.json").read_text(), "the first"
    )
    os.kill(cox.pid, signal.SIGINT)
    assert run.finish(cox, 20) == 130, run.output
    footprint.assert_gone()
