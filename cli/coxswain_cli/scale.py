"""`cox scale`: asks for another number of trainers of a job that runs, here or in a cluster."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from coxswain.api.validate import check
from coxswain.errors import Refused
from coxswain_cli.apply import suspended
from coxswain_cli.readers.choose import Context, JobWithPods, Kubeconfig, Namespace, refusals
from coxswain_cli.readers.stored_run import is_location
from coxswain_cli.workdir import condition, find_workdir, is_open, request_trainers
from coxswain_operator.local.objects import read_objects

Manifest = dict[str, Any]


def scale_command(
    job: JobWithPods,
    trainers: Annotated[int, typer.Argument(metavar="N", min=1, help="Between trainers.minCount and maxCount.")],
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: Namespace = "",
) -> None:
    """Ask for N trainers. The job goes on meanwhile; `cox status JOB` shows how far it is."""
    with refusals("scale"):
        if is_location(job):
            raise Refused("NoJob", f"{job} is a checkpoint location; name a work directory, or a job with --namespace")
        if kubeconfig or context or namespace:
            from coxswain_cli.readers.cluster import Place, scale  # imports an HTTP client

            asked = scale(Place(kubeconfig, context, namespace), job, trainers)
        else:
            asked = f"{scale_here(find_workdir(job), trainers)}: asked for {trainers} trainers"
        typer.echo(asked)


def scale_here(workdir: Path, trainers: int) -> str:
    """Leaves the request for the `cox run` that holds the work directory; returns the job's name. Raises Refused."""
    jobs = [o for o in read_objects(workdir / "cluster") if o["kind"] == "TrainingJob"]
    if not jobs:
        raise Refused("NoJob", f"{workdir} holds no TrainingJob; it was deleted, or never created")
    running = is_open(workdir)
    before = jobs[0] if running else suspended(jobs[0])
    if faults := check(with_trainers(jobs[0], trainers), before):
        raise Refused("Invalid", "; ".join(fault.text for fault in faults))
    if not running:
        first = "raise spec.stop, and " if condition(jobs[0], "Succeeded").get("status") == "True" else ""
        way_out = f"{first}repeat the command with --set spec.trainers.count={trainers}"
        raise Refused("NotRunning", f"the `cox run` of {workdir} has ended; {way_out}")
    request_trainers(workdir, trainers)
    return str(jobs[0]["metadata"]["name"])


def with_trainers(job: Manifest, trainers: int) -> Manifest:
    changed = copy.deepcopy(job)
    changed["spec"]["trainers"]["count"] = trainers
    return changed
