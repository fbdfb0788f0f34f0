"""Operators are killed, upgraded and removed while a job trains: its containers do not change."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from e2e.doc_commands import command, type_in
from e2e.job import ENDLESS, Digests, Job, goes_on, training
from e2e.operators import Operators, everything
from e2e.provision import SYSTEM, Site, becomes, eventually

pytestmark = pytest.mark.timeout(900)

PAGE = "docs/install.md"
KINDS = ("datamixes", "datasources", "parallelismpolicies", "trainingjobs")
KEPT = {
    "namespace/coxswain-system",
    "secret/coxswain-operator-key",
    "apiservice.apiregistration.k8s.io/v1alpha1.coxswain.dev",
    *(f"customresourcedefinition.apiextensions.k8s.io/{kind}.coxswain.dev" for kind in KINDS),
}


@pytest.fixture
def operators(operator: Site) -> Iterator[Operators]:
    """Restores the operators after a test that changes them."""
    yield Operators(operator)
    operator.install()


def containers(job: Job) -> set[tuple[str, str, str]]:
    """(pod's uid, container's id, image): the same set means that nothing was replaced or started
    again.
    """
    return {
        (pod["metadata"]["uid"], container["containerID"], container["image"])
        for pod in job.pods()
        for container in (*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"])
    }


def unnoticed(job: Job, baseline: Digests) -> None:
    """Asserts that the job goes on in its first world."""
    goes_on(job, baseline, 0, 0)
    assert set(job.generations().values()) == {1}


def test_helm_test_finds_a_leader_and_the_kinds_of_the_release(operators: Operators) -> None:
    said = type_in(operators.site, command(PAGE, "helm test coxswain"))
    assert re.findall(r"^Phase: +(\w+)$", said, re.MULTILINE) == ["Succeeded"] * 4, said  # its rights, and its pod
    assert not {name for name in operators.remains() if name.endswith("coxswain-test")}


def test_a_job_keeps_its_containers_when_its_operator_is_killed_or_deleted(
    job: Job, baseline: Digests, operators: Operators
) -> None:
    training(job, **ENDLESS)
    before, leader, transitions = containers(job), operators.leader(), operators.lease()["leaseTransitions"]
    operators.kill(leader)
    eventually(lambda: operators.leader() == leader, f"{leader} leads again", 120)
    assert operators.lease()["leaseTransitions"] == transitions, "another led meanwhile, or it waited for its own Lease"
    operators.delete(leader)
    assert operators.lease()["leaseTransitions"] == transitions + 1
    assert (job.state(), containers(job)) == ("Running", before)
    unnoticed(job, baseline)


def test_a_job_keeps_its_containers_during_an_upgrade_or_restart_of_the_operators(
    job: Job, baseline: Digests, operators: Operators
) -> None:
    training(job, **ENDLESS)
    before, image = containers(job), operators.image()
    following(job.site)
    type_in(
        job.site, f"{command(PAGE, 'helm upgrade coxswain')} --set image.operator.tag=next,image.data.tag=next --wait"
    )
    assert operators.image() == f"{job.site.operator.repository}:next"
    assert (job.state(), containers(job)) == ("Running", before)
    type_in(job.site, command(PAGE, "helm rollback coxswain") + " --wait")
    assert operators.image() == image
    type_in(job.site, f"kubectl --namespace {SYSTEM} rollout restart deployment/coxswain")
    type_in(job.site, command(PAGE, "kubectl --namespace coxswain-system rollout status"))
    assert (job.state(), containers(job)) == ("Running", before)
    unnoticed(job, baseline)


def following(site: Site) -> None:
    """A release `next` of operator and data image: the same content by another name."""
    for node in site.cluster.nodes:
        for image in (site.operator, site.data):
            node.ctr("images", "tag", "--force", image.reference, f"{image.repository}:next")


def test_nothing_but_the_kinds_and_the_key_is_left_of_a_release_and_a_job_trains_on_without_it(
    job: Job, baseline: Digests, operators: Operators
) -> None:
    training(job, **ENDLESS)
    before = containers(job)
    type_in(job.site, command(PAGE, "helm uninstall coxswain"))
    becomes(operators.remains, KEPT, 90)
    assert containers(job) == before
    job.wait_for_more(1)
    line = command(PAGE, "helm install").replace("registry.example/team", "localhost")
    type_in(job.site, f"{line} {' '.join(f'--set {value}' for value in job.site.values())} --wait")
    unnoticed(job, baseline)


def test_a_deleted_job_leaves_its_checkpoints_and_what_was_applied_beside_it(job: Job) -> None:
    training(job, **ENDLESS)
    made = {"secret/s3-keys", *(f"{kind}.coxswain.dev/{name}" for kind, name in BESIDE)}
    line = command("docs/operations.md", "kubectl delete tj").replace("NAME", job.name)
    type_in(job.site, f"{line} --namespace {job.namespace}")
    becomes(lambda: everything(job.site, job.namespace), made, 120)
    assert [*(job.site.store / "runs" / job.place / "manifests").glob("step-*.json")]


BESIDE = (
    ("datasource", "stdlib-code"), ("datasource", "stdlib-docs"), ("datamix", "code-and-docs"),
    ("parallelismpolicy", "rings-of-two"),
)  # fmt: skip
