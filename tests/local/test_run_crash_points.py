"""SIGKILL of a real process at the moment when a certain file appears: between two writes of log, checkpoint and status."""

import json
import os
import re
import signal
import time
from dataclasses import dataclass

import pytest

from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.status import describe
from tests.local.failures import note
from tests.local.jobs import (
    ENDLESS,
    NEW_WORLD,
    SERVICES,
    STEPS,
    Footprint,
    Run,
    find_service,
    job_objects,
    kill_service,
    stop_recovered,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)

PODS = 3  # coordinator, loader, trainer

# The first file of this kind in the run's folder, and the process that is killed then.
POINTS = {
    "generation": ("checkpoints/log/generations/*", "coordinator"),
    "placement": ("checkpoints/log/placements/*/*", "agent"),
    "shard": ("checkpoints/shards/*", "worker"),
    "steps": ("checkpoints/steps/before-*", "coordinator"),
    "manifest": ("checkpoints/manifests/*", "forkserver"),
    "end": (f"checkpoints/manifests/step-{STEPS:010d}.json", "coordinator"),
}
# Here the world has begun.
AMID_TRAINING = {"shard", "steps", "manifest"}
# `test_coordinator_crashes.py` kills at every write in virtual time; here one real process of each kind is enough.
QUICK = {"end"}


def await_file(run, cox, pattern):
    """Looks every millisecond or so: what comes next is to be prevented."""
    end = time.monotonic() + 120
    while not any(run.folder.glob(pattern)):
        assert cox.poll() is None, run.output + run.logs()
        assert time.monotonic() < end, f"no {pattern}"
        time.sleep(0.001)


def counters(run):
    """Attempts of the whole job before the last, and restarts of pods."""
    status = json.loads((run.workdir / "cluster/TrainingJob/default/small.json").read_text())["status"]
    return status["attempt"], status["restarts"]


def kill_at(run, cox, point):
    """SIGKILL at this point; returns what the run had on the machine just before. The process does nothing meanwhile."""
    pattern, service = POINTS[point]
    pid = wait_until(
        lambda: find_service(cox, SERVICES[service]), service
    )  # the coordinator leaves soon behind its last file
    await_file(run, cox, pattern)
    if service == "worker":  # until now it may have been the fork server, of the same name
        pid = find_service(cox, SERVICES[service])
    os.kill(pid, signal.SIGSTOP)
    footprint = Footprint.of(run, cox)
    os.kill(pid, signal.SIGKILL)
    return footprint


@pytest.mark.parametrize("point", [pytest.param(p, marks=[pytest.mark.slow] * (p not in QUICK)) for p in POINTS])
def test_a_process_killed_between_two_writes_costs_no_data_and_leaves_nothing(tmp_path, corpus, request, point):
    steps, trainers, fixture = (STEPS, 1, "baseline") if point == "end" else (ENDLESS, 2, "calm")
    expected, service = request.getfixturevalue(fixture), POINTS[point][1]
    objects = job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=trainers, stop={"steps": steps})
    run = Run(tmp_path, objects)
    cox = run.start()
    footprint = kill_at(run, cox, point)
    generation = 2 if point in AMID_TRAINING and service in NEW_WORLD else 1
    code = run.finish(cox, 150) if point == "end" else stop_recovered(run, cox, generation)
    assert code == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == expected.digests()
    assert run.losses()[:STEPS] == expected.losses()
    # A worker and a fork server are replaced within their pod.
    attempts, restarts = counters(run)
    assert (attempts, restarts["counted"]) == (0, int(service in ("coordinator", "agent")))
    assert restarts["ignored"] <= 2 * (point == "end")  # a service that has heard of the end leaves at once
    footprint.assert_gone()
    note(run.warnings())


def test_a_worker_killed_amid_a_checkpoint_and_then_an_agent_cost_no_data_and_leave_nothing(tmp_path, corpus, calm):
    """The points `shard` here and `agent` of test_run_faults.py, of one run."""
    run = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", stop={"steps": ENDLESS}))
    cox = run.start()
    kill_at(run, cox, "shard")
    wait_until(lambda: any(line["worldGeneration"] == 2 for line in run.steps().values()), "the next world")
    footprint = kill_service(run, cox, SERVICES["agent"], after_step=max(run.steps()))
    assert stop_recovered(run, cox, generation=3) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == calm.digests()
    assert run.losses()[:STEPS] == pytest.approx(calm.losses(), rel=1e-5)
    assert run.steps()[max(run.steps())]["worldGeneration"] == 3
    assert counters(run) == (0, {"counted": 1, "ignored": 0})
    footprint.assert_gone()
    note(run.warnings())


@dataclass
class Killed:
    """A run whose `cox` is gone, what it had on the machine, and what `cox status` says of it."""

    run: Run
    footprint: Footprint
    done: int  # steps, as its file of steps has them
    said: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus):
    """Between the steps and the manifest of a checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    run = Run(folder, job_objects(corpus, f"file://{folder}/checkpoints", trainers=1))
    cox = run.start()
    await_file(run, cox, "checkpoints/steps/before-*")
    footprint = Footprint.of(run, cox)
    os.kill(cox.pid, signal.SIGKILL)
    run.finish(cox)
    footprint.assert_gone()
    return Killed(
        run, footprint, max(run.steps(), default=-1) + 1, "\n".join(describe(FolderReader(run.workdir).look()))
    )


def test_a_job_whose_cox_was_killed_is_not_running_and_its_pods_are_gone(killed):
    assert "small: not running" in killed.said
    assert re.findall(rf"(?m)^ *step +(\d+)(?:/{STEPS})?,", killed.said) == [str(killed.done)] * (killed.done > 0)
    assert killed.said.count("gone, with its `cox run`") == PODS
    assert "Running" not in killed.said
    note("\n".join(killed.said.splitlines()[:2]))


def test_cox_killed_between_the_steps_and_the_manifest_of_a_checkpoint_goes_on_with_the_same_command(killed, baseline):
    run = killed.run
    assert run.run() == 0, run.output + run.logs()
    assert (run.digests(), run.losses()) == (baseline.digests(), baseline.losses())
    assert counters(run) == (0, {"counted": 0, "ignored": PODS})
    killed.footprint.assert_gone()
    note(run.warnings())
