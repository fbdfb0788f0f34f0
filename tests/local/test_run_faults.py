"""SIGKILL of a service amid training. The run goes on with the baseline's digests and leaves nothing.

`test_run_crash_points.py` kills coordinators, workers and fork servers between two writes of a checkpoint, and an agent
behind that.
"""

import pytest

from tests.local.failures import note
from tests.local.jobs import ENDLESS, NEW_WORLD, SERVICES, STEPS, Run, job_objects, kill_service, stop_recovered

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["loader", "constructor", "agent"])
def test_a_killed_service_costs_no_data_and_leaves_nothing(tmp_path, corpus, calm, service):
    run = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", stop={"steps": ENDLESS}))
    cox = run.start()
    footprint = kill_service(run, cox, SERVICES[service], after_step=4)
    generation = 2 if service in NEW_WORLD else 1
    assert stop_recovered(run, cox, generation) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == calm.digests()
    assert run.steps()[max(run.steps())]["worldGeneration"] == generation
    assert run.losses()[:STEPS] == pytest.approx(calm.losses(), rel=1e-5)
    footprint.assert_gone()
    note(run.warnings())
