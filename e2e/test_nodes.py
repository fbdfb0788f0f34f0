"""A job that loses a node has the baseline's steps on other nodes; no restart is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e import nodes
from e2e.cluster.node import Node
from e2e.job import ENDLESS, ROLE_LABEL, Digests, Job, Object, completed, goes_on, training
from e2e.provision import Site

pytestmark = pytest.mark.timeout(900)

NOTICED = 180  # seconds: 20 until the cluster misses a node, 30 that pods tolerate it, and a busy machine
UNCOUNTED = "Disruption: RestartTrainerIgnoringLimit"


@pytest.fixture
def second(operator: Site) -> Iterator[Node]:
    """A node that a test may break: the S3 server runs on the first one."""
    node = operator.cluster.node(1)
    yield node
    nodes.give_back(operator, node)


def test_a_drain_moves_the_whole_job_and_costs_no_counted_restart(job: Job, baseline: Digests, second: Node) -> None:
    with nodes.only(job.site, second):
        training(job, **ENDLESS)
    nodes.drain(job.site, second)
    assert homes(job) == {"node-0"}
    goes_on(job, baseline, 0, 4)


def test_a_job_continues_when_the_node_of_all_its_pods_is_killed(job: Job, baseline: Digests, second: Node) -> None:
    with nodes.only(job.site, second):
        training(job, **ENDLESS)
    second.kill()
    job.wait_for_event("NodeLost", UNCOUNTED, NOTICED)
    nodes.give_back(job.site, second)
    goes_on(job, baseline, 0, 4)


def test_a_job_continues_when_the_node_of_one_trainer_is_killed(job: Job, baseline: Digests, second: Node) -> None:
    spread(job, **ENDLESS)
    second.kill()
    job.wait_for_event("NodeLost", UNCOUNTED, NOTICED)
    job.wait_for_more(1)
    assert homes(job) == {"node-0"}
    goes_on(job, baseline, 0, 1)


def test_a_node_that_reboots_before_it_is_missed_costs_no_counted_restart(
    job: Job, baseline: Digests, second: Node
) -> None:
    spread(job, **ENDLESS)
    second.kill()
    second.start()
    job.wait_for_event("PodDisrupted", UNCOUNTED, NOTICED)
    goes_on(job, baseline, 0, 1)


def test_a_trainer_that_runs_on_behind_a_broken_network_does_no_harm(job: Job, baseline: Digests, second: Node) -> None:
    spread(job, **ENDLESS)
    second.disconnect()
    job.wait_for_event("NodeLost", UNCOUNTED, NOTICED)
    assert second.alive
    second.connect()
    goes_on(job, baseline, 0, 1)


def test_trainers_on_the_network_of_their_nodes_find_each_other(job: Job, baseline: Digests) -> None:
    job.kubectl("label", "namespace", job.namespace, "pod-security.kubernetes.io/enforce=privileged")
    training(job, trainers={"template": {"spec": {"hostNetwork": True}}})
    own = {(pod["status"]["podIP"], pod["spec"]["nodeName"]) for pod in job.pods("trainer")}
    plan = job.site.cluster.plan
    assert own == {(plan.node_address(name), name) for name in plan.nodes}
    completed(job, baseline, 0, 0)


def spread(job: Job, trainers: Object | None = None, **spec: Any) -> None:
    """Trains, with one trainer on the second node and all other pods on the first."""
    first = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-0"}}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {ROLE_LABEL: "trainer"}}}
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    template = {"spec": {"affinity": {"podAntiAffinity": apart}}}
    data = {"loaders": {"min": 1, "max": 1}, "template": first}
    training(job, data=data, trainers={**(trainers or {}), "template": template}, **spec)
    assert homes(job, "trainer") == {"node-0", "node-1"}


def homes(job: Job, role: str = "") -> set[str]:
    """Names of the nodes that its pods are on."""
    return {pod["spec"]["nodeName"] for pod in job.pods(role)}
