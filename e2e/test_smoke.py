"""Install, train, compare, delete, uninstall: the way of a new user, on real kubelets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.job import Job, digests, local_objects, small_objects

pytestmark = pytest.mark.timeout(900)

STEPS = 20


def cox_run(folder: Path, objects: list[dict[str, object]]) -> dict[int, tuple[str, str]]:
    """Digests of the same job on the local cluster."""
    file, work = folder / "job.yaml", folder / "work"
    file.write_text("\n---\n".join(map(json.dumps, objects)))
    command: list[str | Path] = [sys.executable, "-m", "coxswain_cli", "run", file, "--workdir", work]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return digests([work / "steps.jsonl"])


def test_a_job_trains_to_completion_with_the_digests_of_cox_run(job: Job, tmp_path: Path) -> None:
    objects = small_objects(job.site, job.place, STEPS)
    job.apply(objects)
    job.wait("Completed", deadline=420)
    table = job.kubectl("get", "trainingjobs")
    assert "Completed" in table, table
    expected = cox_run(tmp_path, local_objects(objects, job.site.store, tmp_path / "checkpoints"))
    assert sorted(expected) == list(range(STEPS))
    assert job.digests() == expected
