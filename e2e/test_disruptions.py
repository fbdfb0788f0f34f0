"""A job that loses pods or memory or is scaled has the baseline's steps and records the events."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from coxswain import names
from e2e.job import ENDLESS, Digests, Job, Object, completed, goes_on, training
from e2e.provision import eventually
from e2e.throttle import container_id, stop

pytestmark = pytest.mark.timeout(900)

# Fills a trainer's shared memory: the kernel kills the largest process of the container, which is
# the worker.
FILL = """
with open("/dev/shm/ballast", "wb") as file:
    while True:
        file.write(bytes(1 << 24))
"""
NEVER_ENDS = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit()); signal.pause()"


def test_a_suspended_job_is_saved_has_no_pods_and_resumes_from_the_saved_step(job: Job, baseline: Digests) -> None:
    training(job)
    job.patch({"suspend": True})
    job.wait("Suspended")
    saved = job.status()["lastCheckpoint"]["step"]
    assert job.pods() == []
    assert sorted(job.digests()) == list(range(saved))
    job.wait_for_event("Suspended", f"saved before step {saved}")
    job.patch({"suspend": False})
    job.wait_for_event("Resumed", "pods are created again")
    completed(job, baseline, 0, 0)
    assert job.generations() == {step: 1 if step < saved else 2 for step in baseline}


def test_kubectl_scale_goes_on_with_another_number_of_trainers_in_the_same_attempt(job: Job, baseline: Digests) -> None:
    training(job, trainers={"count": 2, "minCount": 2, "maxCount": 3})
    for before, now in ((2, 3), (3, 2)):
        job.kubectl("scale", "tj", job.name, f"--replicas={now}")
        job.wait_for_event("Scaled", f"from {before} to {now} trainers, without a restart", deadline=120)
        job.wait_for_more(1)
        eventually(partial(is_sized, job, now), f"{now} trainers are wanted, and there", 60)
    completed(job, baseline, 0, 0)
    assert [attempt.get("rule") for attempt in job.status()["attempts"]] == [None]


def is_sized(job: Job, trainers: int) -> bool:
    """So many trainers are wanted, and have pods; none is on its way out."""
    return bool(job.status()["trainers"]["desired"] == len(job.pods("trainer")) == trainers)


@pytest.mark.parametrize("role", ["trainer", "loader", "coordinator"])
def test_a_deleted_pod_is_replaced_and_not_counted(job: Job, baseline: Digests, role: str) -> None:
    training(job, **ENDLESS)
    victim, *_ = job.pods(role)
    before = job.uids()
    others = before - {victim["metadata"]["uid"]}
    job.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
    job.wait_for_event("PodDisrupted", "Disruption: RestartTrainerIgnoringLimit")
    eventually(lambda: len(before ^ job.uids()) == 2, "another pod is in its place", 120)
    job.wait_for_more(1)
    assert others < job.uids(), "a healthy pod was replaced"
    goes_on(job, baseline, 0, 1)


def test_a_constructor_that_exits_is_restarted_in_its_pod(job: Job, baseline: Digests) -> None:
    training(job)
    before, (victim, *_) = job.uids(), job.pods("trainer")
    with suppress(RuntimeError):  # the command ends with the container that it runs in
        execute(job, victim, "constructor", "import os; os.kill(1, 15)")
    completed(job, baseline, 0, 0)
    assert job.uids() == before
    assert [constructor(pod)["restartCount"] for pod in job.pods("trainer")] == [1, 0]


def test_a_constructor_and_a_trainer_that_hang_are_ended_by_their_kubelet_and_replaced(
    job: Job, baseline: Digests
) -> None:
    """From their first answer on here, instead of their sixth minute."""
    template = {
        "initContainers": [probed_soon("constructor", names.PORT_CONSTRUCTOR_HTTP)],
        "containers": [probed_soon("trainer", names.PORT_AGENT_HTTP)],
    }
    training(job, trainers={"template": {"spec": template}})
    first, second = job.pods("trainer")
    for pod, container in ((first, "constructor"), (second, "trainer")):
        stop(job.site.cluster.plan.cgroup_of(pod["spec"]["nodeName"]), container_id(pod, container))
    job.wait_for_event("WorkerRestarted", "exit code 137", 180)  # behind the pod's own grace: it ends with its trainer
    completed(job, baseline, 1, 0)
    assert sorted(constructor(pod)["restartCount"] for pod in job.pods("trainer")) == [0, 1]


def probed_soon(name: str, port: int) -> Object:
    """A container of a template with less patience than ours."""
    asks = {"httpGet": {"path": "/healthz", "port": port}}
    soon = {"initialDelaySeconds": 0, "periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 3}
    startup = {**asks, "periodSeconds": 1, "failureThreshold": 300}
    return {"name": name, "startupProbe": startup, "livenessProbe": {**soon, "terminationGracePeriodSeconds": 1}}


def test_a_trainer_out_of_memory_beside_a_sidecar_that_never_ends_is_named_replaced_and_counted(
    job: Job, baseline: Digests
) -> None:
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shipper = {"image": job.site.data.reference, "command": ["python", "-c", NEVER_ENDS], "securityContext": rights}
    training(job, trainers={"template": {"spec": {"containers": [{"name": "shipper", **shipper}]}}})
    victim, *_ = job.pods("trainer")
    with suppress(RuntimeError):
        execute(job, victim, "trainer", FILL)
    event = job.wait_for_event("WorkerRestarted", "Default: RestartTrainer")
    assert "OOMKilled" in event
    completed(job, baseline, 1, 0)


def execute(job: Job, pod: Object, container: str, program: str) -> None:
    job.kubectl("exec", pod["metadata"]["name"], "-c", container, "--", "python", "-c", program)


def constructor(pod: Object) -> Object:
    """What the kubelet says of it: the one init container."""
    found: Object = pod["status"]["initContainerStatuses"][0]
    return found
