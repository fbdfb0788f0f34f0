"""Install, train, compare, delete, uninstall: the way of a new user, on real kubelets."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.baseline import cox_run
from e2e.job import Job, small_objects

pytestmark = pytest.mark.timeout(900)

STEPS = 20


def test_a_job_trains_to_completion_with_the_digests_of_cox_run(job: Job, tmp_path: Path) -> None:
    objects = small_objects(job.site, job.place, STEPS)
    job.apply(objects)
    job.wait("Completed", deadline=420)
    table = job.kubectl("get", "trainingjobs")
    assert "Completed" in table, table
    expected = cox_run(tmp_path, objects, job.site.store)
    assert sorted(expected) == list(range(STEPS))
    assert job.digests() == expected
