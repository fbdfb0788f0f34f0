"""What `cox run` stores of the user's files: their part of each object, whatever a cluster has written to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coxswain.errors import Refused
from coxswain.names import ANNOTATION_RETRY, ANNOTATION_STOP_AT
from coxswain_cli.apply import apply
from coxswain_operator.local import LocalCluster
from tests.api_samples import Manifest, sample

COMPLETED = {"type": "Succeeded", "status": "True", "reason": "Completed", "message": "at step 100"}


def exported(changes: Manifest | None = None) -> Manifest:
    """A job as `kubectl get --output yaml` writes it, once it has ended there."""
    written = {
        "metadata.uid": "of-the-cluster", "metadata.resourceVersion": "99999999", "metadata.generation": 7,
        "metadata.creationTimestamp": "2026-01-01T00:00:00Z", "metadata.namespace": "team", "metadata.labels": {"a": "b"},
        "metadata.annotations": {"team": "a", ANNOTATION_RETRY: "3"}, "metadata.finalizers": ["example.org/keep"],
        "metadata.ownerReferences": [{"uid": "gone"}], "metadata.deletionTimestamp": "2026-01-02T00:00:00Z",
        "metadata.managedFields": [{"manager": "kubectl"}], "status": {"conditions": [COMPLETED], "attempt": 4},
    }  # fmt: skip
    return sample("TrainingJob", {**written, **(changes or {})})


async def test_a_job_that_has_ended_in_a_cluster_is_a_new_one_in_a_work_directory(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        job = (await apply(cluster, [exported()])).job
    own = {name: value for name, value in job["metadata"].items() if name not in ("uid", "creationTimestamp")}
    assert own == {
        "name": "demo", "namespace": "default", "labels": {"a": "b"}, "annotations": {"team": "a"}, "generation": 1,
        "resourceVersion": "1",
    }  # fmt: skip
    assert "status" not in job and job["metadata"]["uid"] != "of-the-cluster"


@pytest.mark.parametrize("field", ["metadata.ownerReferences", "metadata.labels", "metadata.annotations", "status"])
async def test_an_empty_field_of_a_cluster_is_no_obstacle(tmp_path: Path, field: str) -> None:
    for _ in range(2):
        async with LocalCluster(tmp_path) as cluster:
            assert "status" not in (await apply(cluster, [exported({field: None})])).job


async def test_a_repeated_and_changed_export_keeps_the_identity_and_the_status_of_the_stored_job(
    tmp_path: Path,
) -> None:
    status: dict[str, Any] = {"attempt": 1}
    async with LocalCluster(tmp_path) as cluster:
        first = (await apply(cluster, [exported()])).job
        await cluster.patch_status("TrainingJob", "default", "demo", status, "")
        again = await apply(cluster, [exported({"spec.stop.steps": 200, "metadata.uid": "another"})])
    assert (again.changed, again.extended) == (True, True)
    assert (again.job["metadata"]["uid"], again.job["metadata"]["generation"]) == (first["metadata"]["uid"], 2)
    assert again.job["status"] == status


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ({"spec.seed": 2}, "with another checkpoint uri"),
        ({"spec.checkpoint.uri": "s3://moved/run/"}, ": it resumes from the checkpoints at its checkpoint.uri, as of a folder"),
    ],
)  # fmt: skip
async def test_a_job_whose_checkpoints_were_moved_is_not_sent_to_others(
    tmp_path: Path, change: Manifest, way_out: str
) -> None:
    """Relative uris follow the folder of their file: where that was moved, another work directory resumes."""
    async with LocalCluster(tmp_path) as cluster:
        await apply(cluster, [sample("TrainingJob")])
        await cluster.patch_status("TrainingJob", "default", "demo", {"lastCheckpoint": {"step": 8}}, "")
        with pytest.raises(Refused, match=f"or run the changed job in another --workdir ?{re.escape(way_out)}"):
            await apply(cluster, [sample("TrainingJob", change)])


async def test_a_stop_that_an_earlier_run_was_asked_for_is_gone_when_the_command_is_repeated(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        job = (await apply(cluster, [sample("TrainingJob")])).job
        await cluster.replace({**job, "metadata": {**job["metadata"], "annotations": {ANNOTATION_STOP_AT: "7"}}})
        again = await apply(cluster, [sample("TrainingJob")])
    assert (again.changed, again.job["metadata"]["annotations"]) == (False, {})
