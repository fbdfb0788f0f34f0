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
from coxswain_cli.summary import has_ended, is_suspended
from coxswain_cli.workdir import Tail, condition, find_workdir, is_open, steps_of
from coxswain_link.http_client import Client
from coxswain_operator.children.job_token import mounted_name
from coxswain_operator.local.objects import read_objects

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
        seen = look(workdir)
    except Refused as error:
        typer.echo(f"cox status: {error.message}", err=True)
        raise typer.Exit(Exit.USER_FAULT) from error
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(seen)))
    else:
        typer.echo("\n".join(describe(seen)))


class Seen(msgspec.Struct):
    """A work directory at one moment."""

    job: Manifest
    pods: list[Manifest]
    report: JobReport | None
    running: bool  # a process holds the work directory
    step: int  # after the last line of steps.jsonl; 0: none


def look(workdir: Path) -> Seen:
    """Raises Refused where there is no job, or an object is damaged."""
    running, objects = is_open(workdir), read_objects(workdir / "cluster")
    jobs = [o for o in objects if o["kind"] == "TrainingJob"]
    if not jobs:
        raise Refused("NoJob", f"{workdir} holds no TrainingJob; it was deleted, or never created")
    pods = [o for o in objects if o["kind"] == "Pod"]
    report = ask_coordinator(jobs[0], objects, pods) if running else None
    steps = steps_of(Tail(workdir / "steps.jsonl", from_start=True))
    return Seen(jobs[0], pods, report, running, steps[-1].step + 1 if steps else 0)


def ask_coordinator(job: Manifest, objects: list[Manifest], pods: list[Manifest]) -> JobReport | None:
    """Returns the coordinator's report; None when it does not run or does not answer."""
    address = next(
        (p["status"].get("podIP") for p in pods if _role(p) == "coordinator" and p["status"]["phase"] == "Running"),
        None,
    )
    secrets = (o["data"] for o in objects if (o["kind"], o["metadata"]["name"]) == ("Secret", mounted_name(job)))
    token = next((data["token"] for data in secrets if "token" in data), None)
    if address is None or token is None:
        return None
    try:
        with Client(
            f"http://{address}:{names.PORT_COORDINATOR}", base64.b64decode(token).decode(), _DEADLINE
        ) as client:
            return client.get("/v1/report", JobReport)
    except CoxswainError:
        return None


def describe(seen: Seen) -> Iterator[str]:
    """Yields lines of text."""
    job, report, status = seen.job, seen.report, seen.job.get("status", {})
    summary, over = condition(job, "Succeeded"), has_ended(job) or is_suspended(job)
    if seen.running or over:
        yield f"{job['metadata']['name']}: {summary.get('reason', 'Queued')}"
        yield from (f"  {line}" for line in summary.get("message", "").splitlines())
    else:
        yield f"{job['metadata']['name']}: not running"
        yield "  its `cox run` has ended before the job; the same command resumes it"
    if report is not None:
        loss = "-" if report.loss is None else f"{report.loss:.4f}"
        speed = f"{amount(report.tokens_per_second)} tokens/s, idle {report.idle_fraction:.1%}"
        yield f"  step        {report.step}/{report.steps}, loss {loss}, {speed}, {duration(report.eta_seconds)} left"
        yield f"  waits for   {report.waiting_for or 'nothing'}"
    elif progress := status.get("progress"):
        quiet = "" if over or not seen.running else " when last seen; no coordinator answers"
        yield f"  step        {max(progress['step'], seen.step)}/{progress['steps']}{quiet}"
    if layout := status.get("layout"):
        yield f"  layout      {layout.get('summary', '')}, world generation {status.get('worldGeneration', 0)}"
    if checkpoint := status.get("lastCheckpoint"):
        yield f"  checkpoint  before step {checkpoint['step']}, {checkpoint['uri']}"
    restarts = status.get("restarts", {})
    yield f"  restarts    {restarts.get('counted', 0)} counted, {restarts.get('ignored', 0)} ignored"
    for kind in ("Degraded", "Validated"):
        if (found := condition(job, kind)).get("status") == ("True" if kind == "Degraded" else "False"):
            yield f"  {kind.lower():<11} {found['reason']}: {found.get('message', '')}"
    for pod in sorted(seen.pods, key=lambda p: p["metadata"]["name"]):
        yield f"  pod         {pod['metadata']['name']}: {_pod_state(pod, seen.running)}"


def _role(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE, ""))


def _pod_state(pod: Manifest, running: bool) -> str:
    """Returns the phase, and the containers that are not ready."""
    status = pod["status"]
    if not running and status["phase"] not in ("Succeeded", "Failed"):
        return "gone, with its `cox run`"
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    late = [c["name"] for c in containers if not c.get("ready")]
    why = f", not ready: {', '.join(late)}" if status["phase"] == "Running" and late else ""
    ended = [(c["name"], c.get("state", {}).get("terminated")) for c in containers]
    codes = [f"{name} {state.get('exitCode')}" for name, state in ended if state]
    ends = f" (exit codes: {', '.join(codes)})" if codes and status["phase"] in ("Succeeded", "Failed") else ""
    return f"{status['phase']}{why}{ends} {status.get('message', '')}".rstrip()
