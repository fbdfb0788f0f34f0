"""SIGKILL of a service amid training. The run ends Succeeded with the undisturbed digests and leaves nothing.

`test_run_crash_points.py` kills coordinators, workers and fork servers between two writes of a checkpoint.
"""

import pytest

from tests.local.failures import note
from tests.local.jobs import NEW_WORLD, SERVICES, STEPS, Run, job_objects, kill_service

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("service", ["loader", "constructor", "agent"])
def test_a_killed_service_costs_no_data_and_leaves_nothing(tmp_path, corpus, calm, service):
    run = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints"))
    cox = run.start()
    footprint = kill_service(run, cox, SERVICES[service], after_step=7)
    assert run.finish(cox, 150) == 0, run.output + run.logs()
    assert run.digests() == calm.digests()
    assert run.steps()[STEPS - 1]["worldGeneration"] == (2 if service in NEW_WORLD else 1)
    assert run.losses()[-1] == pytest.approx(calm.losses()[-1], rel=1e-5)
    footprint.assert_gone()
    note(run.warnings())
