"""Loss on held-out documents in real runs: the same whatever the replicas and whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.jobs import (
    ENDLESS,
    SERVICES,
    STEPS,
    Run,
    job_objects,
    kill_service,
    stop_recovered,
    whole_run,
)

pytestmark = pytest.mark.timeout(300)

EVERY = 4
EVALUATION = {"everySteps": EVERY, "tokens": 3000}


def evaluations(run: Run) -> dict[int, float]:
    """By step, up to the end of the shorter run."""
    lines = run.steps()
    return {
        k: lines[k]["evaluation_loss"] for k in sorted(lines) if k < STEPS and lines[k]["evaluation_loss"] is not None
    }


def test_a_run_that_loses_a_worker_evaluates_as_one_replica_that_nothing_disturbs(corpus: str, tmp_path: Path) -> None:
    one = whole_run(tmp_path / "one", job_objects(corpus, f"file://{tmp_path}/one", trainers=1, evaluation=EVALUATION))
    endless = {"evaluation": EVALUATION, "stop": {"steps": ENDLESS}}
    two = Run(tmp_path / "two", job_objects(corpus, f"file://{tmp_path}/two", trainers=2, **endless))
    cox = two.start()
    kill_service(two, cox, SERVICES["worker"], after_step=5)
    assert stop_recovered(two, cox, generation=2) == 0, two.output + two.logs()
    losses = evaluations(one)
    assert list(losses) == list(range(EVERY - 1, STEPS, EVERY))
    assert evaluations(two) == pytest.approx(losses, rel=1e-5)
    assert two.digests()[:STEPS] == one.digests()
    assert losses[STEPS - 1] < losses[EVERY - 1]
    assert {line["evaluation_tokens"] for line in one.steps().values()} == {0, 3000}
    assert "  held-out " in one.output
