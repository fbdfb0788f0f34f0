"""Whether a repeated `cox run` asks for another attempt of a job that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from coxswain.names import ANNOTATION_RETRY
from coxswain_cli.again import forget_checkpoint, reopen
from coxswain_cli.apply import NAMESPACE, Applied
from coxswain_operator.local import LocalCluster
from tests.unit.fake_cluster import training_job

Manifest = dict[str, Any]

RETRYABLE, USER_FAULT = 1, 2
TRAINED: Manifest = {"progress": {"step": 40}}
NOTHING: dict[str, bool] = {}
CHANGED, EXTENDED = {"changed": True}, {"changed": True, "extended": True}


class Cluster:
    """Keeps what replaces the job."""

    def __init__(self) -> None:
        self.written: list[Manifest] = []

    async def replace(self, job: Manifest) -> Manifest:
        self.written.append(job)
        return job


def job(succeeded: str, **status: Any) -> Manifest:
    condition = {"type": "Succeeded", "status": succeeded, "reason": "", "message": ""}
    metadata = {"name": "demo", "annotations": {"team": "a"}}
    return {"kind": "TrainingJob", "metadata": metadata, "status": {"conditions": [condition], **status}}


async def asked(found: Manifest, applied: dict[str, bool], retry: bool = False) -> list[str]:
    """The values of the annotation that asks for another attempt."""
    cluster = Cluster()
    await reopen(cast("LocalCluster", cluster), Applied(found, **applied), retry)
    assert all(each["metadata"]["annotations"]["team"] == "a" for each in cluster.written)
    return [each["metadata"]["annotations"][ANNOTATION_RETRY] for each in cluster.written]


@pytest.mark.parametrize(
    ("applied", "retry", "goes_on"),
    [
        (NOTHING, False, False),
        (NOTHING, True, False),
        (CHANGED, False, False),
        (CHANGED, True, False),
        (EXTENDED, False, True),
    ],
)
async def test_a_complete_job_goes_on_only_where_its_stop_was_raised(
    applied: dict[str, bool], retry: bool, goes_on: bool
) -> None:
    assert await asked(job("True", attempt=2, **TRAINED), applied, retry) == ["3"] * goes_on


@pytest.mark.parametrize(
    ("applied", "retry", "goes_on"), [(NOTHING, False, False), (NOTHING, True, True), (CHANGED, False, True)]
)
async def test_a_job_that_failed_after_steps_is_retried_on_request_or_after_a_change(
    applied: dict[str, bool], retry: bool, goes_on: bool
) -> None:
    attempts = [{"exitCode": USER_FAULT}, {"exitCode": RETRYABLE}]
    found = job("False", attempt=1, attempts=attempts, **TRAINED)
    assert await asked(found, applied, retry) == ["2"] * goes_on


@pytest.mark.parametrize(
    "status",
    [
        {"attempts": [{"exitCode": RETRYABLE}, {"exitCode": USER_FAULT}], **TRAINED},
        {"attempts": [{"exitCode": RETRYABLE}]},
    ],
)
async def test_a_failure_by_its_own_files_or_before_the_first_step_is_tried_again_by_itself(status: Manifest) -> None:
    assert await asked(job("False", **status), NOTHING) == ["1"]


@pytest.mark.parametrize("retry", [False, True])
async def test_a_job_that_has_not_ended_is_left_alone(retry: bool) -> None:
    assert await asked(job("Unknown", **TRAINED), EXTENDED, retry) == []


async def test_a_retry_that_is_not_answered_yet_is_not_asked_for_again() -> None:
    found = job("False", attempt=1)
    found["metadata"]["annotations"][ANNOTATION_RETRY] = "2"
    assert await asked(found, CHANGED, retry=True) == []


async def test_a_job_that_may_resume_from_an_older_checkpoint_forgets_the_last_one_and_nothing_else(
    tmp_path: Path,
) -> None:
    """Else its coordinator refuses every checkpoint that is older than the recorded one."""
    async with LocalCluster(tmp_path) as cluster:
        wanted, status = training_job(), {"progress": {"step": 40}, "lastCheckpoint": {"step": 40}}
        made = await cluster.create({**wanted, "metadata": {**wanted["metadata"], "namespace": NAMESPACE}})
        version = made["metadata"]["resourceVersion"]
        found = await cluster.patch_status("TrainingJob", NAMESPACE, "demo", status, version)
        assert (await forget_checkpoint(cluster, found))["status"] == {"progress": {"step": 40}}
