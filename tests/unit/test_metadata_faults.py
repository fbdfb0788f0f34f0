"""What an API server refuses of metadata and of Secrets is a fault offline, and never a traceback of a local run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coxswain.api.jobfiles import load_run
from coxswain.api.validate import check
from coxswain.errors import Refused
from coxswain_operator.local.objects import encode_strings
from tests.api_samples import REMOVED, Manifest, changed, sample

SECRET: Manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": {"KEY": "hidden"}}


@pytest.mark.parametrize("right", [sample("TrainingJob"), sample("DataSource"), SECRET])
@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("metadata", 5, "metadata"),
        ("metadata", "demo", "metadata"),
        ("metadata", [], "metadata"),
        ("metadata", REMOVED, "metadata.name"),
        ("metadata.labels", 5, "metadata.labels"),
        ("metadata.labels", {"a": 5}, "metadata.labels.a"),
        ("metadata.annotations", [1], "metadata.annotations"),
        ("metadata.annotations", {"coxswain.dev/stop-at": None}, "metadata.annotations.coxswain.dev/stop-at"),
        ("metadata.namespace", 5, "metadata.namespace"),
        ("metadata.namespace", "../x", "metadata.namespace"),
        ("metadata.namespace", "a.b", "metadata.namespace"),
        ("metadata.namespace", "a" * 64, "metadata.namespace"),
        ("metadata.namespace", "a" * 63, ""),
        ("metadata.namespace", "", ""),
        ("metadata.labels", None, ""),
        ("metadata.lables", {"a": "b"}, "metadata.lables"),
        ("metadata.managedFields", [], ""),
        *(
            ("metadata.labels", {key: "b"}, "metadata.labels")
            for key in ("a b", "A.b/c", "a..b/c", "a/b/c", "", "/", "é")
        ),
        ("metadata.labels", {"x" * 64: ""}, "metadata.labels"),
        ("metadata.labels", {f"{'a' * 254}/b": ""}, "metadata.labels"),
        ("metadata.labels", {"x" * 63: "x" * 63, f"{'a' * 253}/b": "", "a-1.b/C_.d": "1.a-B_c"}, ""),
        *(
            ("metadata.labels", {"a": text}, "metadata.labels.a")
            for text in ("research team", "-x", "x.", "x" * 64, "é")
        ),
        *(("metadata.annotations", {key: "b"}, "metadata.annotations") for key in ("a b", "a..b/c", "a.-b/c")),
        ("metadata.annotations", {"A.b/c": "any text: {} -", "a": ""}, ""),
        ("metadata.annotations", {"a": "x" * (1 << 18)}, "metadata.annotations"),
        ("metadata.annotations", {"a": "x" * ((1 << 18) - 1)}, ""),
    ],
)
def test_metadata_that_no_cluster_takes_is_a_fault(right: Manifest, path: str, value: Any, fault: str) -> None:
    found = check(changed(right, {path: value}))
    assert [f.path for f in found] == [fault] * bool(fault)
    assert all(f.way_out for f in found)


@pytest.mark.parametrize("name", ["a..b", "a.-b", "a-.b", ".a", "a.", "a" * 254])
def test_a_name_that_is_no_domain_is_a_fault_and_one_of_words_with_dots_between_is_none(name: str) -> None:
    assert [f.path for f in check(sample("DataSource", {"metadata.name": name}))] == ["metadata.name"]
    assert check(sample("DataSource", {"metadata.name": "a-b.c.0"})) == []


def test_a_misspelt_field_of_metadata_gets_its_nearest_neighbour() -> None:
    (fault,) = check(sample("DataSource", {"metadata.lables": {}}))
    assert fault.text == (
        "metadata.lables: unknown field (allowed: name, namespace, labels, annotations, and what a cluster writes); "
        "did you mean labels?"
    )


def test_a_status_that_is_null_is_absent() -> None:
    assert check(sample("TrainingJob", {"status": None})) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("metadata.name", "S3", "metadata.name"),
        ("data", 5, "data"),
        ("data", {"a": 5}, "data.a"),
        ("data", {"a": "hidden!"}, "data.a"),
        ("data", {"a": "aGkh!"}, "data.a"),
        ("data", {"a": "aGk=\n"}, ""),
        ("data", {"a": "aG\r\nk=\r\n"}, ""),
        ("data", None, ""),
        ("stringData", "hidden", "stringData"),
        ("stringData", {"a": None}, "stringData.a"),
        ("stringData", {"a": ["hidden"]}, "stringData.a"),
    ],
)
def test_a_secret_that_no_cluster_takes_is_a_fault_that_shows_none_of_its_values(
    path: str, value: Any, fault: str
) -> None:
    found = check(changed(SECRET, {path: value}))
    assert [f.path for f in found] == [fault] * bool(fault)
    assert "hidden" not in str(found)


def test_data_that_is_null_is_absent_from_a_stored_secret() -> None:
    assert encode_strings({**SECRET, "data": None})["data"] == {"KEY": "aGlkZGVu"}
    assert "data" not in encode_strings({"kind": "Secret", "data": None})


def test_two_objects_of_a_kind_that_differ_in_their_namespace_alone_are_refused_for_a_run(tmp_path: Path) -> None:
    """A run keeps all objects in one namespace: the second would take the name of the first."""
    file = tmp_path / "job.yaml"
    sources = [sample("DataSource", {"metadata.namespace": namespace}) for namespace in ("a", "b")]
    file.write_text("\n---\n".join(map(json.dumps, [sample("TrainingJob"), *sources])))
    with pytest.raises(Refused, match=r"DataSource 'code' is in .*job\.yaml, document 2, too.*; rename or remove one"):
        load_run([file])


def test_a_status_of_a_kind_without_one_and_a_namespace_of_one_of_the_cluster_are_faults() -> None:
    assert [f.path for f in check(sample("DataMix", {"status": {}}))] == ["status"]
    assert [f.path for f in check(sample("NodeQuarantine", {"metadata.namespace": "a"}))] == ["metadata.namespace"]


def test_a_degree_that_devices_are_no_multiple_of_is_one_fault_and_has_its_value() -> None:
    (fault,) = check(sample("TrainingJob", {"spec.parallelism.tensor": 2, "spec.trainers.devicesPerTrainer": 3}))
    assert (fault.path, fault.value) == ("spec.parallelism.tensor", "2")


@pytest.mark.parametrize("right", [sample("TrainingJob"), sample("DataSource"), SECRET])
def test_a_prefix_for_a_generated_name_in_the_place_of_a_name_is_named_with_the_way_out(right: Manifest) -> None:
    (fault,) = check({**right, "metadata": {"generateName": "demo-"}})
    assert fault.text == (
        "metadata.generateName: 'demo-' is no name, and only `kubectl create` makes one of it; write metadata.name instead"
    )
    assert check(changed(right, {"metadata.generateName": "demo-"})) == []
    (fault,) = check({**right, "metadata": {"generateName": ""}})
    assert fault.path == "metadata.name"
