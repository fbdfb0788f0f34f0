"""The CRDs on a real API server: defaults, strictness, what kubectl prints, and the subresources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coxswain.api.crd import crd
from coxswain.api.kinds import BY_NAME, KINDS
from coxswain.api.schema import with_defaults
from coxswain.api.validate import check, defaulted
from e2e.tools.other_kubernetes import minor
from tests.api_samples import REMOVED, Manifest, sample
from tests.integration.apiserver import ApiServer

JOBS = "trainingjobs"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


@pytest.fixture
def job(api: ApiServer) -> Iterator[Manifest]:
    """A stored job; gone afterwards."""
    answer = api.http.post(api.path(JOBS), json=sample("TrainingJob", name="stored"))
    assert answer.status_code == 201, answer.text
    yield answer.json()
    api.http.delete(api.path(JOBS, "stored"))


def create(api: ApiServer, manifest: Manifest) -> Any:
    """The answer to a strict create that stores nothing."""
    path = api.path(BY_NAME[manifest["kind"]].plural)
    return api.http.post(path, json=manifest, params={"dryRun": "All", "fieldValidation": "Strict"})


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_the_server_puts_the_same_defaults_as_the_offline_check_and_leaves_some_in_lists_to_the_readers(
    api: ApiServer, kind: str
) -> None:
    stored = create(api, sample(kind)).json()
    (version,) = crd(BY_NAME[kind])["spec"]["versions"]
    assert stored["spec"] == with_defaults(version["schema"]["openAPIV3Schema"], sample(kind))["spec"]
    assert defaulted(stored)["spec"] == defaulted(sample(kind))["spec"]


SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown field": ("TrainingJob", {"spec.trainers.maxcount": 3}, "spec.trainers.maxcount"),
    "an unknown status field": ("TrainingJob", {"status.phase": "Running"}, "status.phase"),
    "a missing field": ("TrainingJob", {"spec.optimizer.learningRate": REMOVED}, "spec.optimizer.learningRate"),
    "a missing spec": ("DataMix", {"spec": REMOVED}, "spec"),
    "a number for a decimal string": ("TrainingJob", {"spec.optimizer.learningRate": 0.1}, "spec.optimizer.learningRate"),
    "a string for a number": ("TrainingJob", {"spec.trainers.count": "3"}, "spec.trainers.count"),
    "no decimal string": ("TrainingJob", {"spec.optimizer.weightDecay": "a tenth"}, "spec.optimizer.weightDecay"),
    "a fraction": ("TrainingJob", {"spec.trainers.count": 1.5}, "spec.trainers.count"),
    "a word outside the enumeration": ("DataSource", {"spec.format": "Csv"}, "spec.format"),
    "too small a number": ("TrainingJob", {"spec.trainers.count": 0}, "spec.trainers.count"),
    "too large a number": ("ParallelismPolicy", {"spec.tensor": 1025}, "spec.tensor"),
    "too long a string": ("DataSource", {"spec.include": "x" * 257}, "spec.include"),
    "an empty list": ("DataMix", {"spec.sources": []}, "spec.sources"),
    "a foreign uri": ("DataSource", {"spec.uri": "gs://corpus"}, "spec.uri"),
    "a uri without a bucket": ("DataSource", {"spec.uri": "s3:///code"}, "spec.uri"),
    "a uri without a claim": ("TrainingJob", {"spec.checkpoint.uri": "pvc:///runs"}, "spec.checkpoint.uri"),
    "a NUL in a path": ("DataSource", {"spec.uri": "file:///a\0b"}, "spec.uri"),
    "a relative uri": ("DataSource", {"spec.uri": "file:./corpus"}, "spec.uri"),
    "null without a default": ("TrainingJob", {"spec.batch": None}, "spec.batch"),
    "two items of a name": (
        "DataMix",
        {"spec.sources": 2 * [{"name": "a", "sourceRef": {"name": "a"}, "weight": 1}]},
        "spec.sources[1].name",
    ),
    "an object for a list": ("DataMix", {"spec.sources": {}}, "spec.sources"),
    "an unknown field of metadata": ("DataSource", {"metadata.lables": {}}, "metadata.lables"),
    "a label with a space": ("DataSource", {"metadata.labels": {"team": "of research"}}, "metadata.labels.team"),
    "a key of a label with a space": ("DataSource", {"metadata.labels": {"a team": "x"}}, "metadata.labels"),
    "a prefix of a label in capitals": ("DataSource", {"metadata.labels": {"A.b/c": "x"}}, "metadata.labels"),
    "a prefix of an annotation with two dots": ("DataSource", {"metadata.annotations": {"a..b/c": "x"}}, "metadata.annotations"),
    "too large annotations": ("DataSource", {"metadata.annotations": {"a": "x" * (1 << 18)}}, "metadata.annotations"),
    "a name with two dots": ("DataSource", {"metadata.name": "a..b"}, "metadata.name"),
    "too many labels of a template": (
        "TrainingJob",
        {"spec.trainers.template": {"metadata": {"labels": {f"k{n}": "" for n in range(65)}}}},
        "spec.trainers.template.metadata.labels",
    ),
    "a name that is no word": ("DataMix", {"spec.sources": [{"name": "A b", "weight": 1}]}, "spec.sources[0].name"),
}  # fmt: skip


@pytest.mark.parametrize("what", SHAPES)
def test_server_and_offline_check_both_refuse(api: ApiServer, what: str) -> None:
    kind, changes, path = SHAPES[what]
    manifest = sample(kind, changes)
    assert create(api, manifest).status_code in (400, 422)
    assert path in [fault.path for fault in check(manifest)]


def test_null_where_there_is_a_default_means_the_default(api: ApiServer) -> None:
    manifest = sample("TrainingJob", {"spec.suspend": None})
    assert create(api, manifest).json()["spec"]["suspend"] is False
    assert check(manifest) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"status": None},
        {"metadata.annotations": {"A.b/c": "any text", "x" * 63: "x" * ((1 << 18) - 76)}},
        {"metadata.labels": {f"{'a' * 253}/{'x' * 63}": "x" * 63, "a-1.b/C_.d": ""}},
    ],
)
def test_server_and_offline_check_both_accept_metadata_at_its_bounds(api: ApiServer, changes: Manifest) -> None:
    manifest = sample("TrainingJob", changes)
    assert create(api, manifest).status_code == 201
    assert check(manifest) == []


def test_null_for_an_optional_object_means_absent(api: ApiServer) -> None:
    manifest = sample("DataSource", {"spec.endpoint": None, "spec.uri": "file:///corpus"})
    assert create(api, manifest).status_code == 201
    assert check(manifest) == []


def test_a_pod_template_keeps_what_we_do_not_know(api: ApiServer) -> None:
    template = {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    stored = create(api, sample("TrainingJob", {"spec.trainers.template": template})).json()
    assert stored["spec"]["trainers"]["template"] == template


def test_kubectl_prints_a_job_in_one_line(api: ApiServer, job: Manifest) -> None:
    put_status(api, STATUS)
    narrow, wide = columns(api, "stored")
    assert narrow == {
        "Name": "stored", "STATE": "Running", "READY": "3/4", "STEP": 412, "PROGRESS": "41.2", "TOK/S": "402113",
        "RESTARTS": 1, "SLOW": "trainer-2", "AGE": narrow["AGE"],
    }  # fmt: skip
    assert wide == {
        "LOSS": "1.873", "IDLE": "3.1", "ETA": 2210, "LAYOUT": "4 x tp1pp1", "MIX": "mix", "CHECKPOINT": 400,
    }  # fmt: skip


NOW = "2026-11-21T09:00:00Z"
STATUS: Manifest = {
    "observedGeneration": 1,
    "conditions": [
        {"type": "Progressing", "status": "True", "reason": "Training", "message": "", "lastTransitionTime": NOW},
        {"type": "Succeeded", "status": "Unknown", "reason": "Running", "message": "", "lastTransitionTime": NOW},
    ],
    "ready": "3/4",
    "replicas": 4,
    "selector": "coxswain.dev/job=stored",
    "trainers": {"ready": 3, "desired": 4},
    "restarts": {"counted": 1, "ignored": 2},
    "progress": {
        "step": 412, "steps": 1000, "percent": "41.2", "tokens": "108003328", "loss": "1.873", "tokensPerSecond": "402113",
        "idlePercent": "3.1", "etaSeconds": 2210,
    },
    "layout": {"hash": "abc", "summary": "4 x tp1pp1"},
    "lastCheckpoint": {"step": 400, "uri": "s3://runs/demo/step-400", "time": NOW},
    "stragglers": [{"trainer": "trainer-2", "device": 1, "slowdown": "2.00", "since": NOW, "cause": "Device"}],
    "attempts": [{"number": 0, "start": NOW}],
    "incarnations": [{"name": "trainer-2", "number": 1}],
}  # fmt: skip


def put_status(api: ApiServer, status: Manifest) -> Manifest:
    patch = {"Content-Type": "application/merge-patch+json"}
    place = api.path(JOBS, "stored", "status")
    answer = api.http.patch(place, json={"status": status}, headers=patch, params={"fieldValidation": "Strict"})
    assert answer.is_success, answer.text
    stored: Manifest = answer.json()
    return stored


def test_kubectl_prints_of_a_mix_its_spec_and_no_state_that_nothing_writes(api: ApiServer) -> None:
    stored = api.http.post(api.path("datamixes"), json=sample("DataMix", {"metadata.name": "printed"}))
    assert stored.status_code == 201, stored.text
    table = api.http.get(api.path("datamixes", "printed"), headers=TABLE).json()
    cells = {c["name"]: cell for c, cell in zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True)}
    assert (cells["SEED"], cells["LONG"]) == (7, "Split") and "READY" not in cells


def columns(api: ApiServer, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cells of the object's line by column, those always printed and those of `-o wide`."""
    table = api.http.get(api.path(JOBS, name), headers=TABLE).json()
    cells = list(zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True))
    return tuple({c["name"]: cell for c, cell in cells if (c["priority"] > 0) is wide} for wide in (False, True))  # type: ignore[return-value]


def test_a_status_as_the_design_shows_it_is_stored_whole(api: ApiServer, job: Manifest) -> None:
    assert put_status(api, STATUS)["status"] == STATUS


def test_the_spec_cannot_be_changed_through_status_nor_the_status_through_the_object(
    api: ApiServer, job: Manifest
) -> None:
    patch = {"Content-Type": "application/merge-patch+json"}
    both = {"spec": {"suspend": True}, "status": {"attempt": 7}}
    through_status = api.http.patch(api.path(JOBS, "stored", "status"), json=both, headers=patch).json()
    assert (through_status["spec"]["suspend"], through_status["status"]["attempt"]) == (False, 7)
    through_object = api.http.patch(
        api.path(JOBS, "stored"), json={**both, "status": {"attempt": 8}}, headers=patch
    ).json()
    assert (through_object["spec"]["suspend"], through_object["status"]["attempt"]) == (True, 7)


def test_a_status_write_leaves_the_generation_alone(api: ApiServer, job: Manifest) -> None:
    assert put_status(api, STATUS)["metadata"]["generation"] == job["metadata"]["generation"]


def test_scale_reads_and_writes_the_count_of_trainers_within_its_bounds(api: ApiServer, job: Manifest) -> None:
    put_status(api, STATUS)
    place, patch = api.path(JOBS, "stored", "scale"), {"Content-Type": "application/merge-patch+json"}
    scale = api.http.get(place).json()
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (4, 4)
    assert scale["status"]["selector"] == "coxswain.dev/job=stored"
    assert api.http.patch(place, json={"spec": {"replicas": 6}}, headers=patch).is_success
    assert api.http.get(api.path(JOBS, "stored")).json()["spec"]["trainers"]["count"] == 6
    refused = api.http.patch(place, json={"spec": {"replicas": 9}}, headers=patch)
    assert "count 9 may not be above maxCount 8" in refused.text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_short_name_and_category_find_the_kind(api: ApiServer, kind: Any) -> None:
    resources = api.http.get("/apis/coxswain.dev/v1alpha1").json()["resources"]
    (found,) = [resource for resource in resources if resource["name"] == kind.plural]
    assert (found["shortNames"], found["categories"]) == ([kind.short], ["training"])
    assert found["namespaced"] is kind.namespaced


@pytest.mark.skipif(minor() < 31, reason="an alpha in Kubernetes 1.30")
def test_jobs_can_be_selected_by_mix_and_queue(api: ApiServer, job: Manifest) -> None:
    def found(selector: str) -> int:
        return len(api.http.get(api.path(JOBS), params={"fieldSelector": selector}).json()["items"])

    assert found("spec.mixRef.name=mix") == 1
    assert found("spec.mixRef.name=other") == 0
    assert found("spec.scheduling.queueing.queueName=research") == 0
