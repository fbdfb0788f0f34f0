"""First faults: SIGKILL of each kind of service, once. The run ends Succeeded with the undisturbed digests and leaves nothing."""

import pytest

from tests.local.failures import note
from tests.local.jobs import SERVICES, STEPS, Run, job_objects, kill_service

pytestmark = pytest.mark.timeout(240)

# Whose death needs another world; the others are replaced beside running workers.
NEW_WORLD = {"worker", "mold", "agent"}


@pytest.mark.parametrize("service", SERVICES)
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
