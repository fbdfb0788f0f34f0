"""A service that hangs, here by SIGSTOP, is ended and replaced as one that crashed: its peers would wait for it for ever."""

import os
import signal
from pathlib import Path

import pytest

from coxswain import names
from tests.local.jobs import ENDLESS, SERVICES, STEPS, Run, find_service, job_objects, wait_for_step, wait_until

pytestmark = pytest.mark.timeout(240)

SOON = {
    "initialDelaySeconds": 0,
    "periodSeconds": 1,
    "timeoutSeconds": 3,
    "failureThreshold": 2,
    "terminationGracePeriodSeconds": 0,
}
"""Instead of five minutes, and then 70 seconds."""


def container(name: str, port: int) -> dict[str, object]:
    """Is probed from its first answer on."""
    return {"name": name, "startupProbe": {"httpGet": {"path": "/healthz", "port": port}}, "livenessProbe": SOON}


TRAINER = {
    "initContainers": [container("constructor", names.PORT_CONSTRUCTOR_HTTP)],
    "containers": [container("trainer", names.PORT_AGENT_HTTP)],
}
DATA = {
    "containers": [
        container("loader", names.PORT_LOADER_HTTP),
        container("coordinator", names.PORT_COORDINATOR),
    ]
}


def hang(run, cox, service):
    """Stops a process of the service for good, and waits until it is gone and training goes on."""
    pid = wait_until(lambda: find_service(cox, SERVICES[service]), f"a process of {service}")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of {service}")
    wait_for_step(run, cox, max(run.steps()) + 4)


@pytest.mark.slow
def test_a_service_that_hangs_is_replaced_and_costs_no_data(tmp_path, corpus, baseline):
    objects = job_objects(corpus, f"file://{tmp_path}/checkpoints", stop={"steps": ENDLESS})
    objects[-1]["spec"]["trainers"]["template"] = {"spec": TRAINER}
    objects[-1]["spec"]["data"]["template"] = {"spec": DATA}
    run = Run(tmp_path, objects)
    cox = run.start()
    wait_for_step(run, cox, 4)
    for service in ("agent", "loader", "constructor", "coordinator"):
        hang(run, cox, service)
    wait_for_step(run, cox, STEPS)
    cox.send_signal(signal.SIGINT)
    assert run.finish(cox) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == baseline.digests()
    assert (run.workdir / "logs" / "cox.log").read_text().count("has not answered its liveness probe 2 times") == 4
