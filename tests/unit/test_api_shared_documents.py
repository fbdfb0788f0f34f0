"""Sources that read the same documents are refused where the job evaluates: one would train on what another holds out."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.api.field_errors import FieldError
from coxswain.api.load import Document
from coxswain.api.resolve import resolve
from coxswain.api.validate import validate
from tests.api_samples import Manifest, sample

EVALUATION = {"spec.evaluation": {"everySteps": 10, "tokens": 100}}
ELSEWHERE = {"spec.endpoint": {"url": "https://other:9000"}}


def mix(**references: str) -> Manifest:
    entries = [{"name": name, "sourceRef": {"name": to}, "weight": 1} for name, to in references.items()]
    return sample("DataMix", {"spec.sources": entries})


def faults(mixed: Manifest, *sources: Manifest, job: dict[str, Any] = EVALUATION) -> list[FieldError]:
    resolved = resolve(sample("TrainingJob", job), sources, [mixed], [], "uid-1")
    return resolved if isinstance(resolved, list) else []


def test_sources_of_one_data_source_are_refused_by_name_where_the_job_evaluates() -> None:
    (fault,) = faults(mix(code="code", again="code"), sample("DataSource"))
    assert (fault.reason, fault.path) == ("DocumentsShared", "DataMix/mix spec.sources")
    assert "code (DataSource code), again (DataSource code)" in fault.message
    assert "weights added up, or remove spec.evaluation" in fault.way_out
    assert faults(mix(code="code", again="code"), sample("DataSource"), job={}) == []


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, True),
        ({"spec.uri": "s3://corpus/code"}, True),
        ({"spec.maxRejected": 3}, True),
        ({"spec.uri": "s3://corpus/docs/"}, False),
        ({"spec.include": "a/*"}, False),
        ({"spec.textField": "body"}, False),
        (ELSEWHERE, False),
    ],
)
def test_two_data_sources_of_the_same_documents_are_refused(changes: dict[str, Any], shared: bool) -> None:
    found = faults(mix(code="code", twin="twin"), sample("DataSource"), sample("DataSource", changes, name="twin"))
    assert [fault.reason for fault in found] == ["DocumentsShared"] * shared


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"spec.endpoint": {"region": "eu-west-1", "secretRef": {"name": "keys"}}}),
        (ELSEWHERE, {"spec.endpoint": {"url": "https://other:9000/"}}),
        ({"spec.format": "Text"}, {"spec.format": "Text", "spec.textField": "body"}),
        ({"spec.format": "TokenBin"}, {"spec.format": "TokenBin", "spec.textField": "body"}),
    ],
)
def test_what_does_not_decide_about_documents_makes_no_other_ones(one: dict[str, Any], other: dict[str, Any]) -> None:
    found = faults(mix(code="code", twin="twin"), sample("DataSource", one), sample("DataSource", other, name="twin"))
    assert [fault.reason for fault in found] == ["DocumentsShared"]


def test_every_set_of_shared_documents_is_a_fault_beside_those_of_missing_sources() -> None:
    found = faults(mix(a="code", b="gone", c="code", d="gone"), sample("DataSource"))
    assert [fault.reason for fault in found] == [
        "SourceNotFound",
        "SourceNotFound",
        "DocumentsShared",
        "DocumentsShared",
    ]


def test_validation_of_files_finds_shared_documents_also_where_a_cluster_has_the_data_source() -> None:
    manifests = [sample("TrainingJob", EVALUATION), mix(code="gone", again="gone")]
    found = validate([Document("job.yaml", n, manifest) for n, manifest in enumerate(manifests, 1)])
    assert [(fault.reason, fault.file, fault.document) for fault in found] == [("DocumentsShared", "job.yaml", 1)]
