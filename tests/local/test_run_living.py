"""A worker that is killed costs no step that others have done: the next world takes its state from memory."""

import json
import os
import signal
from typing import Any

import pytest

from tests.local.jobs import (
    ENDLESS,
    SERVICES,
    STEPS,
    Run,
    _read,
    descendants,
    job_objects,
    stop_recovered,
    wait_for_step,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)


def workers_of(cox: Any) -> list[int]:
    """Process ids of all workers: the forks of fork servers."""
    every = list(descendants(cox.pid))
    forks = [pid for pid in every if SERVICES["forkserver"].encode() in _read(pid, "cmdline").split(b"\0")]
    return [pid for pid in forks if pid not in {parent for parent in forks if set(descendants(parent)) & set(forks)}]


def test_a_killed_worker_costs_at_most_one_step_where_another_holds_its_copy(tmp_path, corpus, calm):
    objects = job_objects(corpus, f"file://{tmp_path}/c", stop={"steps": ENDLESS}, recovery={"copies": "EveryStep"})
    objects[-1]["spec"]["checkpoint"]["everySteps"] = 10_000
    run = Run(tmp_path, objects)
    cox = run.start()
    wait_for_step(run, cox, 5)
    before = workers_of(cox)
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: any(line["worldGeneration"] == 2 for line in run.steps().values()), "the next world")
    after = workers_of(cox)
    assert (after[0], len(after)) == (before[0], 2)
    assert stop_recovered(run, cox, 2) == 0, run.output + run.logs()
    lines = [json.loads(line) for line in (run.workdir / "steps.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert len(steps) - len(set(steps)) <= 1
    first = min(line["step"] for line in lines if line["worldGeneration"] == 2)
    assert first >= 5
    assert run.digests()[:STEPS] == calm.digests()
    assert run.losses()[:STEPS] == pytest.approx(calm.losses(), rel=1e-6)
