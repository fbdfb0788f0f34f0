"""Whether a pod fits on a node, by what can be known without all pods of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.reconcile.node_fit import amount, misfit, requests_of
from coxswain_operator.views import Manifest, NodeView

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8.0), (8, 8.0), ("500m", 0.5), ("1k", 1000.0), ("2Ki", 2048.0), ("1.5Gi", 1.5 * 2**30), ("1e3", 1000.0),
     ("3M", 3e6), ("1Ei", 2.0**60), (".5", 0.5), ("5.", 5.0),
     ("", 0.0), ("many", 0.0), ("1x", 0.0), ("1.2.3", 0.0), (".", 0.0), ("1..2Gi", 0.0)],
)  # fmt: skip
def test_quantities_are_numbers(text: Any, number: float) -> None:
    assert amount(text) == number


def spec(**more: Any) -> Manifest:
    trainer = {
        "name": "trainer",
        "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "9"}, "requests": {"cpu": "4"}},
    }
    sidecar = {"name": "constructor", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    first = {"name": "init", "resources": {"requests": {"cpu": "64"}}}
    return {"containers": [trainer], "initContainers": [sidecar, first], **more}


def test_a_pod_asks_for_what_its_containers_that_run_together_ask_for() -> None:
    assert requests_of(spec()) == {"nvidia.com/gpu": 8.0, "cpu": 4.5}
    assert requests_of({"containers": [{"name": "bare"}]}) == {}


def term(operator: str, *values: str, key: str = "pool") -> Manifest:
    expressions = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [expressions]}}}}


def alternatives(*terms: Manifest) -> Manifest:
    """Affinities of one term each, as terms of one: the node needs to hold one of them."""
    found = [t for term in terms for t in term["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": found}}}}


BOTH = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "pool", "operator": "In", "values": ["a"]}, {"key": "zone", "operator": "Exists"},
]}]}}}}  # fmt: skip
OF_NAME = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]},
]}}}}  # fmt: skip
EMPTY = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}}


@pytest.mark.parametrize(
    ("pod", "taints", "others", "why"),
    [
        ({}, (), 0, ""),
        ({}, (), 1, "too little nvidia.com/gpu"),
        ({"nodeSelector": {"pool": "a"}}, (), 0, ""),
        ({"nodeSelector": {"pool": "b"}}, (), 0, "not selected"),
        ({"nodeName": "n"}, (), 0, ""),
        ({"nodeName": "slow"}, (), 0, "not selected"),  # its template allows no other node
        (term("In", "a"), (), 0, ""),
        (term("In", "b"), (), 0, "not selected"),
        (term("NotIn", "a"), (), 0, "not selected"),
        (term("NotIn", "b"), (), 0, ""),
        (term("Exists"), (), 0, ""),
        (term("Exists", key="zone"), (), 0, "not selected"),
        (term("DoesNotExist"), (), 0, "not selected"),
        (term("DoesNotExist", key="zone"), (), 0, ""),
        (term("Gt", "3"), (), 0, ""),  # the scheduler's business
        (OF_NAME, (), 0, "not selected"),
        (EMPTY, (), 0, "not selected"),
        (alternatives(term("In", "b"), term("In", "a")), (), 0, ""),
        (alternatives(term("In", "b"), term("Exists", key="zone")), (), 0, "not selected"),
        (alternatives(EMPTY, term("In", "a")), (), 0, ""),
        (BOTH, (), 0, "not selected"),  # of one term everything must hold
        ({}, (("gpu", "NoSchedule"),), 0, "tainted"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, (("gpu", "NoSchedule"),), 0, ""),
        ({"tolerations": [{"operator": "Exists"}]}, (("gpu", "NoExecute"),), 0, ""),
        ({"tolerations": [{"key": "gpu", "effect": "NoExecute"}]}, (("gpu", "NoSchedule"),), 0, "tainted"),
        ({"tolerations": [{"key": "gpu", "tolerationSeconds": 30}]}, (("gpu", "NoExecute"),), 0, "tainted"),
        ({"tolerations": [{"key": "gpu"}]}, (("gpu", "NoSchedule"), ("disk", "NoSchedule")), 0, "tainted"),
    ],
)
def test_a_pod_fits_where_nothing_that_is_known_speaks_against_it(
    pod: Manifest, taints: tuple[tuple[str, str], ...], others: int, why: str
) -> None:
    room = {"nvidia.com/gpu": "8", "cpu": "96"}
    node = NodeView(frozenset({("Ready", "True")}), False, taints, {"pool": "a"}, room)
    assert misfit("n", node, spec(**pod), others) == why


@pytest.mark.parametrize(("policy", "counts"), [("Always", True), ("OnFailure", False), ("Never", False)])
def test_only_an_init_container_that_runs_on_counts_beside_the_others(policy: str, counts: bool) -> None:
    beside = {"name": "a", "restartPolicy": policy, "resources": {"requests": {"cpu": "1"}}}
    assert requests_of({"containers": [{"name": "b"}], "initContainers": [beside]}) == ({"cpu": 1.0} if counts else {})


@pytest.mark.parametrize(("each", "others", "node"), [("100m", 2, "300m"), ("800m", 5, "4800m"), ("0.7", 4, "3500m")])
def test_pods_that_fill_a_node_to_the_last_millicore_fit(each: str, others: int, node: str) -> None:
    pod = {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": each}}}]}
    assert misfit("n", ready(cpu=node), pod, others) == ""
    assert misfit("n", ready(cpu=node), pod, others + 1) == "too little cpu"


def test_the_parts_of_a_pod_that_fill_a_node_to_the_last_millicore_fit() -> None:
    first, *sidecars = ({"name": c, "resources": {"requests": {"cpu": c}}} for c in ("7600m", "500m", "250m"))
    pod = {"containers": [first], "initContainers": [{**c, "restartPolicy": "Always"} for c in sidecars]}
    assert misfit("n", ready(cpu="8350m"), pod, 0) == ""
    assert misfit("n", ready(cpu="8349m"), pod, 0) == "too little cpu"


def ready(**allocatable: str) -> NodeView:
    return NodeView(frozenset({("Ready", "True")}), allocatable=allocatable)
