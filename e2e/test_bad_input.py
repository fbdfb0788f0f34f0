"""A job that cannot work says what is wrong and what to do in its conditions and events; once mended, it continues."""

from __future__ import annotations

import re

import pytest

from e2e.cluster.controlplane import CONTROLLER_MANAGER
from e2e.job import Digests, Job, Object, small_objects
from e2e.provision import eventually
from e2e.store import SECRET_KEY

pytestmark = pytest.mark.timeout(600)

STEPS = 4
NOWHERE = "localhost/coxswain-train:nowhere"
WRONG_KEY = "not-the-secret-key"


def completed(job: Job, baseline: Digests) -> None:
    job.wait("Completed", deadline=300)
    assert job.digests() == {step: baseline[step] for step in range(STEPS)}


def condition(job: Job, type_: str) -> Object:
    return next((c for c in job.status().get("conditions", ()) if c["type"] == type_), {})


def wait_for_words(job: Job, type_: str, *words: str, deadline: float = 90) -> str:
    """The message of a condition once it has all these words."""

    def message() -> str:
        text = str(condition(job, type_).get("message", ""))
        return text if all(word in text for word in words) else ""

    return eventually(message, f"{type_} of {job.name} says {words}", deadline)


def with_keys(objects: list[Object], **keys: str) -> list[Object]:
    """The same objects with other content of the Secret."""
    return [{**at, "stringData": keys} if at["kind"] == "Secret" else at for at in objects]


def everything_said(job: Job) -> str:
    """All that people see of a job: objects but for the Secrets, events, logs."""
    seen = job.kubectl("get", "training,pods,configmaps,events", "-o", "yaml")
    logs = [log_of(job, pod["metadata"]["name"]) for pod in job.pods()]
    return "\n".join((seen, job.kubectl("describe", "tj", job.name), *logs))


def log_of(job: Job, pod: str) -> str:
    """Empty for a pod that has gone since it was listed."""
    try:
        return job.kubectl("logs", pod, "--all-containers")
    except RuntimeError as error:
        if "NotFound" not in str(error):
            raise
        return ""


def test_a_missing_image_is_named_and_can_be_corrected_while_the_job_is_suspended(job: Job, baseline: Digests) -> None:
    job.apply(small_objects(job.site, job.place, STEPS, image=NOWHERE))
    message = wait_for_words(job, "PodsReady", "ImagePullBackOff", NOWHERE)
    assert "not ready: " in message and "trainer-0" in message
    assert job.state() in ("Starting", "Indexing")  # loaders have their image, and begin
    assert job.restarts() == (0, 0)
    assert NOWHERE in condition(job, "Succeeded")["message"]
    job.patch({"suspend": True})
    job.wait("Suspended")
    job.patch({"suspend": False, "image": ""})
    completed(job, baseline)


def test_an_image_that_is_not_pulled_in_time_costs_counted_restarts_until_the_job_fails(job: Job) -> None:
    spec: Object = {"startTimeoutSeconds": 20, "failurePolicy": {"maxRestarts": 0}}
    job.apply(small_objects(job.site, job.place, STEPS, image=NOWHERE, **spec))
    job.wait("Failed", deadline=180)
    message = condition(job, "Succeeded")["message"]
    assert message.startswith("RestartLimitExceeded: "), message
    for words in (NOWHERE, "startTimeoutSeconds (20)", "failurePolicy.maxRestarts (0)"):
        assert words in message
    assert NOWHERE in job.wait_for_event("Failed", "RestartLimitExceeded")


def test_a_rule_fails_a_job_with_a_missing_image_at_once(job: Job) -> None:
    rule = {"name": "no-image", "onReasons": ["ErrImagePull", "ImagePullBackOff"], "action": "Fail"}
    job.apply(small_objects(job.site, job.place, STEPS, image=NOWHERE, failurePolicy={"rules": [rule]}))
    job.wait("Failed", deadline=120)
    assert "rule no-image says Fail" in condition(job, "Succeeded")["message"]


def test_a_secret_that_is_missing_is_named_and_the_job_starts_once_it_is_made(job: Job, baseline: Digests) -> None:
    objects = small_objects(job.site, job.place, STEPS)
    secret = [at for at in objects if at["kind"] == "Secret"]
    job.apply([at for at in objects if at["kind"] != "Secret"])
    wait_for_words(job, "PodsReady", "NotPrepared", "is there Secret s3-keys, Secret ", "kubectl describe pod")
    assert (job.state(), job.restarts()) == ("Starting", (0, 0))
    job.apply(secret)
    completed(job, baseline)


def test_a_job_applied_together_with_its_namespace_waits_for_the_service_account(
    job_without_namespace: Job, baseline: Digests
) -> None:
    job = job_without_namespace
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": job.namespace}}
    with job.site.cluster.frozen(CONTROLLER_MANAGER):  # which makes the service account
        job.apply([space, *small_objects(job.site, job.place, STEPS)])
        wait_for_words(job, "Succeeded", "ServiceAccountMissing", "Kubernetes creates `default` soon")
        assert (job.state(), job.pods()) == ("Starting", [])
    completed(job, baseline)
    assert job.restarts() == (0, 0)


MISTAKES: list[tuple[Object, str]] = [
    ({"nodeSelectr": {"gpu": "h100"}}, "spec.trainers.template.spec.nodeSelectr"),
    ({"containers": [{"nme": "trainer"}]}, "spec.trainers.template.spec.containers[0].nme"),
    ({"containers": "no"}, "spec.trainers.template.spec.containers"),
]


def test_a_template_with_a_mistake_is_refused_by_the_server_with_its_path(job: Job) -> None:
    objects = small_objects(job.site, job.place, STEPS)
    for mistake, path in MISTAKES:
        objects[-1]["spec"]["trainers"]["template"] = {"spec": mistake}
        with pytest.raises(RuntimeError, match=re.escape(path)):
            job.apply(objects)
    assert job.kubectl("get", "tj,pods", "-o", "name") == ""


def test_credentials_that_the_store_refuses_end_the_job_with_the_secrets_name_and_not_its_value(job: Job) -> None:
    objects = small_objects(job.site, job.place, STEPS)
    job.apply(with_keys(objects, AWS_ACCESS_KEY_ID="demo", AWS_SECRET_ACCESS_KEY=WRONG_KEY))
    job.wait("Failed", deadline=180)
    message = condition(job, "Succeeded")["message"]
    assert re.match(r"AccessDenied: s3://(runs|corpus)/", message)  # coordinator and loader: either is refused first
    for words in ("Secret 's3-keys' (endpoint.secretRef)", "check them"):
        assert words in message
    assert "AccessDenied" in job.wait_for_event("Failed", "s3-keys")
    said = everything_said(job)
    assert "AccessDenied" in said
    assert WRONG_KEY not in said and SECRET_KEY not in said


def test_a_secret_without_a_key_ends_the_job_with_what_it_needs(job: Job) -> None:
    job.apply(with_keys(small_objects(job.site, job.place, STEPS), AWS_ACCESS_KEY_ID="demo"))
    job.wait("Failed", deadline=180)
    message = condition(job, "Succeeded")["message"]
    for words in ("SecretIncomplete", "'s3-keys'", "needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        assert words in message
