"""A slow, lost or additional device costs seconds on a cluster too: no container that works is started again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from e2e import nodes
from e2e.cluster.node import Node
from e2e.job import SLOW, Job, small_objects
from e2e.provision import Site, eventually
from e2e.test_nodes import NOTICED, homes, spread
from e2e.throttle import container_id, throttled

pytestmark = pytest.mark.timeout(1200)

STEPS = 400
WITHIN = 20  # steps, from the last one that was saved before a device became slow
# The longest sequence fits one trainer, so that a job can go on with one.
LIVING = {"recovery": {"copies": "EveryStep"}, "batch": {"tokensPerStep": 4096, "maxSequenceTokens": 2048}}
BOUNDS = {"count": 2, "minCount": 1, "maxCount": 3}


@pytest.fixture
def second(operator: Site) -> Iterator[Node]:
    node = operator.cluster.node(1)
    yield node
    nodes.give_back(operator, node)


def containers(job: Job) -> dict[str, str]:
    """Container ids of the trainers, by pod."""
    return {pod["metadata"]["name"]: container_id(pod, "trainer") for pod in job.pods("trainer")}


def started(job: Job, **spec: object) -> None:
    job.apply(small_objects(job.site, job.place, STEPS, model=SLOW, **{**LIVING, **spec}))
    job.wait_for_step(3, deadline=400)


def has_size(job: Job, count: int) -> None:
    """Waits until so many trainers work."""
    eventually(lambda: job.status().get("ready") == f"{count}/{count}", f"{count} trainers work", 400)


def seconds_of_steps(job: Job, first: int, last: int) -> float:
    found = sorted(line["seconds"] for line in job.step_lines() if first <= line["step"] < last)
    return float(found[len(found) // 2])


def assert_each_step_once(job: Job) -> None:
    """The lines that count go on without a gap, in worlds that only grow."""
    lines = {line["step"]: line for line in job.step_lines()}
    assert sorted(lines) == list(range(len(lines)))
    worlds = [lines[step]["worldGeneration"] for step in sorted(lines)]
    assert all(before <= after for before, after in pairwise(worlds))


def redone(job: Job) -> int:
    """Steps that have a second line."""
    lines = job.step_lines()
    return len(lines) - len({line["step"] for line in lines})


def planned_from(job: Job) -> int | None:
    """The first step whose plan counts with the slow trainer, or leaves it out."""
    said = [found["action"] for found in job.status().get("stragglers") or ()] + job.events("LayoutChanged")
    return next((int(step) for words in said for step in re.findall(r"from step (\d+)", words)), None)


def test_a_throttled_trainer_is_found_and_planned_around_in_the_same_containers(job: Job) -> None:
    """No event ends this straggler: it is throttled to the last step, also where the layout leaves it without work."""
    started(job, stragglers={"action": "Migrate"}, trainers=BOUNDS)
    before, pod = containers(job), next(p for p in job.pods("trainer") if p["metadata"]["name"].endswith("-1-0"))
    first = max(job.digests())
    cgroup = job.site.cluster.plan.cgroup_of(pod["spec"]["nodeName"])
    with throttled(cgroup, container_id(pod, "trainer"), 0.1):
        said = job.wait_for_event("StragglerDetected", "trainer-1", 300)
        slow = eventually(lambda: job.status().get("stragglers"), "the status names the slow trainer", 60)
        assert slow[0]["trainer"] == "trainer-1" and slow[0]["cause"] in ("Device", "Node")
        assert "trainer-1" in job.kubectl("get", "tj", job.name)
        planned = eventually(lambda: planned_from(job), "plans count with the slow trainer", 120)
        (confirmed,) = map(int, re.findall(r"confirmed at step (\d+)", said))
        assert confirmed <= planned <= first + WITHIN
        job.wait_for_more(40)
        last = max(job.digests())
    assert containers(job) == before and job.restarts() == (0, 0)
    assert_each_step_once(job)
    worst = max(line["seconds"] for line in job.step_lines() if first <= line["step"] <= planned)
    assert seconds_of_steps(job, last - 20, last) < worst / 2


def test_a_lost_node_costs_at_most_one_step_and_no_healthy_container(job: Job, second: Node) -> None:
    spread(job, **LIVING, model=SLOW, trainers=BOUNDS, stop={"steps": STEPS})
    stays = {name: found for name, found in containers(job).items() if name in on(job, "node-0")}
    second.kill()
    job.wait_for_event("NodeLost", "", NOTICED)
    job.wait_for_more(8)
    assert {name: containers(job)[name] for name in stays} == stays
    assert job.restarts()[0] == 0 and redone(job) <= 1
    assert_each_step_once(job)


def test_a_node_that_is_killed_while_the_job_changes_its_size_ends_in_one_world(job: Job, second: Node) -> None:
    spread(job, **LIVING, model=SLOW, trainers=BOUNDS, stop={"steps": STEPS})
    job.kubectl("scale", "tj", job.name, "--replicas=3")
    eventually(lambda: len(job.pods("trainer")) == 3, "a third trainer's pod is made", 60)
    second.kill()
    job.wait_for_event("NodeLost", "", NOTICED)
    nodes.give_back(job.site, second)
    has_size(job, 3)
    job.wait_for_more(8)
    assert job.status()["attempt"] == 0 and job.restarts()[0] == 0
    assert_each_step_once(job)


def test_a_job_is_scaled_up_and_down_in_the_containers_that_it_has(job: Job) -> None:
    started(job, trainers=BOUNDS)
    before = containers(job)
    for count in (3, 2):
        job.kubectl("scale", "tj", job.name, f"--replicas={count}")
        has_size(job, count)
        job.wait_for_more(8)
        assert before.items() <= containers(job).items()
    assert [m for m in job.events("Scaled") if "without a restart" in m]
    assert job.status()["attempt"] == 0 and job.restarts() == (0, 0)
    assert_each_step_once(job)


def test_a_node_in_quarantine_gets_no_pods_until_it_is_admitted(job: Job) -> None:
    job.site.install("quarantine.enabled=true")
    made = {
        "apiVersion": "coxswain.dev/v1alpha1",
        "kind": "NodeQuarantine",
        "metadata": {"name": "node-1"},
        "spec": {"node": "node-1", "reason": "Slow", "evidence": "a test"},
    }
    job.site.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        assert "node-1" in job.site.kubectl("get", "nq")
        started(job)
        assert homes(job) == {"node-0"}
    finally:
        job.site.kubectl("delete", "nq", "node-1")
        job.site.install()


def on(job: Job, node: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in job.pods("trainer") if pod["spec"]["nodeName"] == node}
