"""`cox status`: shows what a job in a work directory does, and why it waits."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coxswain import names
from coxswain.errors import CoxswainError, Refused
from coxswain.exits import Exit
from coxswain.wire import JobReport
from coxswain_cli.progress import amount, duration
from coxswain_cli.workdir import condition, find_workdir, objects
from coxswain_link.http_client import Client

Manifest = dict[str, Any]

_DEADLINE = 1.0  # seconds for the coordinator's answer


def status_command(
    job: Annotated[
        str, typer.Argument(metavar="JOB|WORKDIR", help="A work directory, or the name of a job below runs/.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: job, pods, report.")] = False,
) -> None:
    """Show what a job does, and why it waits."""
    try:
        workdir = find_workdir(job)
        manifest = _only_job(workdir)
    except Refused as error:
        typer.echo(f"cox status: {error.message}", err=True)
        raise typer.Exit(Exit.USER_FAULT) from error
    pods = objects(workdir, "Pod")
    report = ask_coordinator(workdir, pods)
    if as_json:
        typer.echo(json.dumps({"job": manifest, "pods": pods, "report": msgspec.to_builtins(report)}))
    else:
        typer.echo("\n".join(describe(manifest, pods, report)))


def _only_job(workdir: Path) -> Manifest:
    jobs = objects(workdir, "TrainingJob")
    if not jobs:
        raise Refused("NoJob", f"{workdir} holds no TrainingJob; it was deleted, or never created")
    return jobs[0]


def ask_coordinator(workdir: Path, pods: list[Manifest]) -> JobReport | None:
    """Returns the coordinator's report; None when it does not run or does not answer."""
    address = next(
        (p["status"]["podIP"] for p in pods if _role(p) == "coordinator" and p["status"]["phase"] == "Running"), None
    )
    token = next((s["data"]["token"] for s in objects(workdir, "Secret") if "token" in s.get("data", {})), None)
    if address is None or token is None:
        return None
    try:
        with Client(
            f"http://{address}:{names.PORT_COORDINATOR}", base64.b64decode(token).decode(), _DEADLINE
        ) as client:
            return client.get("/v1/report", JobReport)
    except CoxswainError:
        return None


def describe(job: Manifest, pods: list[Manifest], report: JobReport | None) -> Iterator[str]:
    """Yields lines of text."""
    summary, status = condition(job, "Succeeded"), job.get("status", {})
    yield f"{job['metadata']['name']}: {summary.get('reason', 'Queued')}"
    if summary.get("message"):
        yield f"  {summary['message']}"
    if report is not None:
        loss = "-" if report.loss is None else f"{report.loss:.4f}"
        speed = f"{amount(report.tokens_per_second)} tokens/s, idle {report.idle_fraction:.1%}"
        yield f"  step        {report.step}/{report.steps}, loss {loss}, {speed}, {duration(report.eta_seconds)} left"
        yield f"  waits for   {report.waiting_for or 'nothing'}"
    elif progress := status.get("progress"):
        over = summary.get("reason") in ("Completed", "Failed", "Suspended")
        quiet = "" if over else " when last seen; no coordinator answers"
        yield f"  step        {progress['step']}/{progress['steps']}{quiet}"
    if layout := status.get("layout"):
        yield f"  layout      {layout.get('summary', '')}, world generation {status.get('worldGeneration', 0)}"
    if checkpoint := status.get("lastCheckpoint"):
        yield f"  checkpoint  before step {checkpoint['step']}, {checkpoint['uri']}"
    restarts = status.get("restarts", {})
    yield f"  restarts    {restarts.get('counted', 0)} counted, {restarts.get('ignored', 0)} ignored"
    for kind in ("Degraded", "Validated"):
        if (found := condition(job, kind)).get("status") == ("True" if kind == "Degraded" else "False"):
            yield f"  {kind.lower():<11} {found['reason']}: {found.get('message', '')}"
    for pod in sorted(pods, key=lambda p: p["metadata"]["name"]):
        yield f"  pod         {pod['metadata']['name']}: {_pod_state(pod)}"


def _role(pod: Manifest) -> str:
    return str(pod["metadata"].get("labels", {}).get(names.LABEL_ROLE, ""))


def _pod_state(pod: Manifest) -> str:
    """Returns the phase, and the containers that are not ready."""
    status = pod["status"]
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    late = [c["name"] for c in containers if not c["ready"]]
    why = f", not ready: {', '.join(late)}" if status["phase"] == "Running" and late else ""
    codes = [f"{c['name']} {c['state']['terminated']['exitCode']}" for c in containers if "terminated" in c["state"]]
    ends = f" (exit codes: {', '.join(codes)})" if codes and status["phase"] in ("Succeeded", "Failed") else ""
    return f"{status['phase']}{why}{ends} {status.get('message', '')}".rstrip()
