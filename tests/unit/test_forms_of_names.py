"""A name that a pod takes from a field has the form that the cluster demands of it: no pod is refused for it later."""

from __future__ import annotations

import pytest

from coxswain.api.validate import check
from tests.api_samples import sample

_QUEUE = {"backend": "Kueue", "queueName": "team"}
_PREFIX, _LONGEST = f"{'a' * 253}/", "b" * 63


def faults(kind: str, path: str, value: object) -> list[tuple[str, bool]]:
    changes: dict[str, object] = {path: value}
    if path.startswith("spec.scheduling.queueing."):
        changes = {"spec.scheduling.queueing": _QUEUE, path: value}
    return [(fault.path, bool(fault.way_out)) for fault in check(sample(kind, changes))]


@pytest.mark.parametrize("name", ["a..b", "a.-b", "a-.b", ".a", "a.", "-a", "A", "a b", "é", "a\n", "a" * 254])
@pytest.mark.parametrize(
    "path",
    [
        "spec.mixRef.name",
        "spec.checkpoint.endpoint.secretRef.name",
        "spec.scheduling.priorityClassName",
        "spec.scheduling.queueing.priorityClassName",
        "spec.scheduling.queueing.queueName",
    ],
)
def test_a_reference_that_no_object_can_have_for_its_name_is_a_fault(path: str, name: str) -> None:
    if not path.endswith("queueName"):  # which pods have in a label
        assert faults("TrainingJob", path, "a" * 253) == []
    assert faults("TrainingJob", path, "a-1.b.0") == []
    assert faults("TrainingJob", path, name) == [(path, True)]


def test_a_queue_is_named_by_a_label_of_its_pods() -> None:
    path = "spec.scheduling.queueing.queueName"
    assert faults("TrainingJob", path, "a" * 63) == []
    assert faults("TrainingJob", path, "a" * 64) == [(path, True)]


@pytest.mark.parametrize("field", ["required", "preferred"])
@pytest.mark.parametrize(
    "key",
    ["a b", "/", "/a", "a/", "a/b/c", "A/b", "a..b/c", "-a", "a-", "é", "rack\n", "b" * 64, f"{_PREFIX}{_LONGEST}b"],
)
def test_a_topology_that_no_label_of_a_node_has_is_a_fault(field: str, key: str) -> None:
    path = f"spec.scheduling.topology.{field}"
    for right in ("rack", "example.org/Rack_1.a", f"{_PREFIX}{_LONGEST}", ""):
        assert faults("TrainingJob", path, right) == []
    assert faults("TrainingJob", path, key) == [(path, True)]


@pytest.mark.parametrize("claim", ["a..b", "a-.b", ".a", "A", ""])
def test_a_claim_that_no_cluster_has_is_a_fault(claim: str) -> None:
    assert faults("DataSource", "spec.uri", "pvc://a-1.b.0/corpus") == []
    assert faults("DataSource", "spec.uri", f"pvc://{claim}/corpus") == [("spec.uri", True)]
