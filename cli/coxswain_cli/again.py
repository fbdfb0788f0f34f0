"""What a repeated `cox run` does with a job that has ended: nothing, or another attempt in the same place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coxswain.exits import Exit
from coxswain.names import ANNOTATION_RETRY
from coxswain_cli.apply import NAMESPACE, Applied, has_trained
from coxswain_cli.summary import has_ended, has_failed
from coxswain_cli.workdir import as_argument
from coxswain_operator.local import LocalCluster

Manifest = dict[str, Any]


async def reopen(cluster: LocalCluster, applied: Applied, retry: bool) -> Manifest:
    """Requests a retry where there is a reason for one; returns the job as stored.

    A failed job is retried on request (`retry`), after a change, and where its own files are to
    blame or nothing was trained yet: then a try costs little and shows whether the cause is gone.
    A complete job is retried when its stop was raised.
    """
    job = applied.job
    wanted = retry or applied.changed or tries_by_itself(job) if has_failed(job) else applied.extended
    if not (has_ended(job) and wanted):
        return job
    attempt = job["status"].get("attempt", 0) + 1  # never the value of an earlier retry
    notes = {**(job["metadata"].get("annotations") or {}), ANNOTATION_RETRY: str(attempt)}
    return await cluster.replace({**job, "metadata": {**job["metadata"], "annotations": notes}})


def tries_by_itself(job: Manifest) -> bool:
    attempts = job.get("status", {}).get("attempts") or [{}]
    return attempts[-1].get("exitCode") == Exit.USER_FAULT or not has_trained(job)


async def forget_checkpoint(cluster: LocalCluster, job: Manifest) -> Manifest:
    """Takes the last checkpoint from the job's status: an older one will do."""
    status = {k: v for k, v in job.get("status", {}).items() if k != "lastCheckpoint"}
    name, version = job["metadata"]["name"], job["metadata"]["resourceVersion"]
    return await cluster.patch_status("TrainingJob", NAMESPACE, name, status, version)


def nothing_to_do(job: Manifest, workdir: Path) -> str:
    """Says why an ended job is not trained, and how it would be."""
    if has_failed(job):
        return "this job has failed and nothing was changed: nothing is trained. --retry resumes it"
    return (
        "this job is complete: nothing is trained. To train further, raise spec.stop and repeat the command; for a new "
        f"run, choose another --workdir than {as_argument(workdir)} and another checkpoint.uri"
    )
