"""Trainers that come and go while `cox run` trains: by `cox scale`, and by the loss of a whole pod."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.local.jobs import Run, wait_for_step, wait_until, whole_run
from tests.local.living import agents_of, living_job, pod, scale, send, stop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def wait_for_world(run: Run, cox: subprocess.Popen[str], generation: int) -> None:
    """Until three steps of it are done."""

    def trains() -> bool:
        assert cox.poll() is None, run.finish(cox)
        return sum(line["worldGeneration"] >= generation for line in run.steps().values()) >= 3

    wait_until(trains, f"three steps of generation {generation}", 90)


def assert_equal_to_calm(run: Run, corpus: str, folder: Path, trainers: int) -> None:
    """A run of as many steps that nothing disturbs, of one size."""
    count = len(run.steps())
    calm = whole_run(folder, living_job(corpus, folder, trainers, stop={"steps": count}).objects)
    assert run.digests() == calm.digests()
    assert run.losses() == pytest.approx(calm.losses(), rel=1e-6)


def test_a_job_that_is_scaled_up_and_down_trains_on_in_the_same_processes(tmp_path, corpus):
    run = living_job(corpus, tmp_path / "living", 1)
    cox = run.start()
    wait_for_step(run, cox, 3)
    first = pod(cox, 0)
    scale(run, 2)
    wait_for_world(run, cox, 2)
    assert pod(cox, 0) == first and pod(cox, 1)
    scale(run, 1)
    wait_for_world(run, cox, 3)
    wait_until(lambda: not pod(cox, 1), "the end of trainer-1")
    assert pod(cox, 0) == first
    stop(run, cox)
    lines = run.lines("steps.jsonl")
    steps, generations = [line["step"] for line in lines], [line["worldGeneration"] for line in lines]
    assert steps == list(range(len(steps))) and sorted(set(generations)) == [1, 2, 3]
    assert "WorkerRestarted" not in run.events(), run.warnings()
    assert_equal_to_calm(run, corpus, tmp_path / "calm", 1)


def test_a_trainer_whose_pod_is_killed_is_planned_around_at_once_and_joins_again(tmp_path, corpus):
    run = living_job(corpus, tmp_path / "living", 2, recovery={"copies": "EveryStep"})
    cox = run.start()
    wait_for_step(run, cox, 5)
    kept, lost = pod(cox, 0), pod(cox, 1)
    send(lost, signal.SIGKILL)
    held = wait_until(lambda: agents_of(pod(cox, 1) - lost), "another agent")
    send(held, signal.SIGSTOP)  # so that it cannot register before the other trainer goes on
    wait_for_world(run, cox, 2)
    send(held, signal.SIGCONT)
    wait_for_world(run, cox, 3)
    assert pod(cox, 0) == kept and pod(cox, 1) and not pod(cox, 1) & lost
    stop(run, cox)
    lines = run.lines("steps.jsonl")
    steps = [line["step"] for line in lines]
    assert len(steps) - len(set(steps)) <= 1
    found = {line["worldGeneration"]: line for line in reversed(lines)}
    last = max((line for line in lines if line["worldGeneration"] == 1), key=lambda line: line["step"])
    assert sorted(found) == [1, 2, 3] and found[2]["step"] >= 5
    assert found[2]["time"] - last["time"] < 30  # three of them are patience; the others are for a busy machine
    assert_equal_to_calm(run, corpus, tmp_path / "calm", 2)


def test_a_pipeline_that_loses_a_trainer_for_good_becomes_replicas_and_is_whole_again_with_the_trainer(
    tmp_path, corpus
):
    """Two stages on three trainers: one stands by. The planner's layout for the two that are left has a replica on each."""
    spec = {"recovery": {"copies": "EveryStep"}, "stragglers": {"action": "Migrate"}}
    run = living_job(corpus, tmp_path / "living", 3, **spec)
    job = run.objects[-1]["spec"]
    job["trainers"] |= {"minCount": 2, "maxCount": 3}
    job["parallelism"]["pipeline"] = 2
    cox = run.start()
    wait_for_step(run, cox, 5)
    kept, lost = pod(cox, 0), pod(cox, 1)
    send(lost, signal.SIGKILL)
    held = wait_until(lambda: agents_of(pod(cox, 1) - lost), "another agent")
    send(held, signal.SIGSTOP)
    wait_for_world(run, cox, 3)
    send(held, signal.SIGCONT)
    wait_for_world(run, cox, 4)
    assert pod(cox, 0) == kept
    stop(run, cox)
    events = run.lines("events.jsonl")
    changed = [event["message"] for event in events if event["reason"] == "LayoutChanged"]
    assert len(changed) == 2 and changed[1].startswith("trainer-1 joined; generation 4 ")
    # Beside others on the machine a trainer may be slow as well, and be named before the loss.
    assert changed[0].startswith("because of ")
    assert "the loss of trainer-1: 2 x tp1pp1 is predicted to save " in changed[0]
    steps = [line["step"] for line in run.lines("steps.jsonl")]
    assert len(steps) - len(set(steps)) <= 1
    assert_equal_to_calm(run, corpus, tmp_path / "calm", 1)
