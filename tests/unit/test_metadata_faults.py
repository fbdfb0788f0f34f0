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
    ],
)
def test_metadata_that_no_cluster_takes_is_a_fault(right: Manifest, path: str, value: Any, fault: str) -> None:
    found = check(changed(right, {path: value}))
    assert [f.path for f in found] == [fault] * bool(fault)
    assert all(f.way_out for f in found)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("metadata.name", "S3", "metadata.name"),
        ("data", 5, "data"),
        ("data", {"a": 5}, "data.a"),
        ("data", {"a": "hidden!"}, "data.a"),
        ("data", {"a": "aGk=\n"}, ""),
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
