"""A worker that is killed costs no step that others have done: the next world takes its state from memory.

The loss on held-out documents is the same too, whatever the replicas and whatever is killed.
"""

import os
import signal
from typing import Any

import pytest

from tests.local.jobs import (
    ENDLESS,
    SERVICES,
    STEPS,
    Run,
    descendants,
    job_objects,
    read_process,
    stop_recovered,
    wait_for_step,
    wait_until,
    whole_run,
)

pytestmark = pytest.mark.timeout(300)

EVERY = 4
EVALUATION = {"everySteps": EVERY, "tokens": 3000}


def workers_of(cox: Any) -> list[int]:
    """Process ids of all workers: the forks of fork servers."""
    every = list(descendants(cox.pid))
    forks = [pid for pid in every if SERVICES["forkserver"].encode() in read_process(pid, "cmdline").split(b"\0")]
    return [pid for pid in forks if pid not in {parent for parent in forks if set(descendants(parent)) & set(forks)}]


@pytest.fixture(scope="module")
def one(tmp_path_factory, corpus):
    """One replica that nothing disturbs, with evaluations."""
    folder = tmp_path_factory.mktemp("one")
    return whole_run(folder, job_objects(corpus, f"file://{folder}/c", trainers=1, evaluation=EVALUATION))


@pytest.fixture(scope="module")
def two(tmp_path_factory, corpus):
    """Two replicas with copies of each other's state, of which one loses its worker."""
    folder, endless = tmp_path_factory.mktemp("two"), {"stop": {"steps": ENDLESS}, "recovery": {"copies": "EveryStep"}}
    objects = job_objects(corpus, f"file://{folder}/c", evaluation=EVALUATION, **endless)
    objects[-1]["spec"]["checkpoint"]["everySteps"] = 10_000
    run = Run(folder, objects)
    cox = run.start()
    wait_for_step(run, cox, 5)
    before = workers_of(cox)
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: any(line["worldGeneration"] == 2 for line in run.steps().values()), "the next world")
    after = workers_of(cox)
    assert (after[0], len(after)) == (before[0], 2)
    assert stop_recovered(run, cox, 2) == 0, run.output + run.logs()
    return run


def test_a_killed_worker_costs_at_most_one_step_where_another_holds_its_copy(one, two):
    lines = two.lines("steps.jsonl")
    steps = [line["step"] for line in lines]
    assert len(steps) - len(set(steps)) <= 1
    first = min(line["step"] for line in lines if line["worldGeneration"] == 2)
    assert first >= 5
    assert two.digests()[:STEPS] == one.digests()
    assert two.losses()[:STEPS] == pytest.approx(one.losses(), rel=1e-5)


def evaluations(run: Run) -> dict[int, float]:
    """By step, up to the end of the shorter run."""
    lines = run.steps()
    return {
        k: lines[k]["evaluation_loss"] for k in sorted(lines) if k < STEPS and lines[k]["evaluation_loss"] is not None
    }


def test_a_run_that_loses_a_worker_evaluates_as_one_replica_that_nothing_disturbs(one, two):
    """The loss may break off one evaluation: that of the last step of its world."""
    losses, found = evaluations(one), evaluations(two)
    assert list(losses) == list(range(EVERY - 1, STEPS, EVERY))
    last = min(step for step, line in two.steps().items() if line["worldGeneration"] == 2) - 1
    assert losses.keys() - found.keys() <= {last}
    assert found == pytest.approx({step: losses[step] for step in found}, rel=1e-5)
    assert losses[STEPS - 1] < losses[EVERY - 1]
    assert {line["evaluation_tokens"] for line in one.steps().values()} == {0, 3000}
    assert "  held-out " in one.output
