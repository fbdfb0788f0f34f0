"""A job in a work directory of this machine."""

from __future__ import annotations

import base64
import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path

from coxswain import names
from coxswain.errors import CoxswainError, Refused
from coxswain.wire import JobReport, StepLine
from coxswain_cli.readers.stored_run import mixes_at, steps_before
from coxswain_cli.readers.values import Manifest, Progress, Seen, Write, reported, stored
from coxswain_cli.reporting.model import RecordedRun
from coxswain_cli.reporting.read import read_run
from coxswain_cli.summary import has_ended, is_suspended
from coxswain_cli.workdir import RUNS, Tail, as_argument, condition, find_workdir, is_open, last_step
from coxswain_link.http_client import Client
from coxswain_operator.children.job_token import mounted_name
from coxswain_operator.local.objects import read_objects

_DEADLINE = 1.0  # seconds for the coordinator's answer
_PAUSE = 0.25  # seconds between two looks at growing logs
_POD = re.compile(r".+?-((?:coordinator|loader-\d+|trainer-\d+))-(\d+)")


class FolderReader:
    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir

    @property
    def report_path(self) -> Path:
        return self._workdir / "report.html"

    def look(self) -> Seen:
        """Raises Refused where there is no job, or an object is damaged."""
        running, objects = is_open(self._workdir), read_objects(self._workdir / "cluster")
        jobs = [o for o in objects if o["kind"] == "TrainingJob"]
        if not jobs:
            raise Refused("NoJob", f"{self._workdir} holds no TrainingJob; it was deleted, or never created")
        pods = [o for o in objects if o["kind"] == "Pod"]
        report = ask_coordinator(jobs[0], objects, pods) if running else None
        last = last_step(self._workdir)
        state, explanation = _heading(jobs[0], running)
        progress = reported(report) if report else _last_known(jobs[0], running, last)
        step = last.step + 1 if last else 0
        return Seen(jobs[0], state, explanation, pods, report, running, step, progress, workdir=str(self._workdir))

    def record(self, steps: tuple[int, ...]) -> RecordedRun:
        run = read_run(self._workdir, steps)
        if run.job is None:
            return run
        mixes, unmixed = mixes_at(run.job.checkpoint)
        first = run.steps[0].step if run.steps else 0
        earlier, missing = steps_before(first, run.job.checkpoint) if first else ((), "")
        notes = tuple(filter(None, (unmixed, missing)))
        return dataclasses.replace(run, steps=(*earlier, *run.steps), mixes=mixes or run.mixes, notes=notes)

    def logs(self, member: str, follow: bool, write: Write) -> None:
        tails: dict[Path, Tail] = {}
        while True:
            ended = not (follow and is_open(self._workdir))
            for path in dict.fromkeys((*tails, *self._logs(member))):  # also those of pods that were replaced meanwhile
                tail, origin = tails.setdefault(path, Tail(path, from_start=True)), f"{path.parent.name}/{path.stem}"
                for line in tail.lines():
                    write(origin, line)
                if ended and (rest := tail.rest()):
                    write(origin, rest + b"\n")
            if ended:
                break
            time.sleep(_PAUSE)
        if not tails:
            raise self._no_logs(member)

    def _no_logs(self, member: str) -> Refused:
        what = f"log of {member}" if member else "logs"
        pods = f"`cox status {as_argument(self._workdir)}` lists the pods"
        return Refused("NoLogs", f"{self._workdir}/logs holds no {what}; {pods}")

    def _logs(self, member: str) -> list[Path]:
        """Of the newest pod of each member, or of one."""
        newest: dict[str, tuple[int, Path]] = {}
        for folder in _listed(self._workdir / "logs"):
            match = _POD.fullmatch(folder.name)
            if match and member in ("", match[1]):
                newest[match[1]] = max(newest.get(match[1], (-1, folder)), (int(match[2]), folder))
        folders = sorted(folder for _, folder in newest.values())
        return [path for folder in folders for path in _listed(folder) if path.suffix == ".log"]


def _listed(folder: Path) -> list[Path]:
    """In order. Raises Refused where it cannot be listed: `glob` takes a folder of another user for an empty one."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        way_out = "repeat this as the user that ran the job, or repair that"
        raise Refused("FolderUnreadable", f"{folder} cannot be listed ({error.strerror}); {way_out}") from error


def _last_known(job: Manifest, running: bool, last: StepLine | None) -> Progress | None:
    """From the last line of steps.jsonl. The job's status may be older than that line, of steps that were discarded, or have
    no progress yet. Rates say nothing about now."""
    stale = running and not (has_ended(job) or is_suspended(job))
    note = "when last seen; no coordinator answers" if stale else ""
    found = stored(job.get("status", {}), note)
    if last is None:
        return found and Progress(found.step, found.steps, found.loss, note=note)
    return Progress(last.step + 1, found.steps if found else 0, last.loss, note=note)


def _heading(job: Manifest, running: bool) -> tuple[str, tuple[str, ...]]:
    summary = condition(job, "Succeeded")
    if running or has_ended(job) or is_suspended(job):
        return summary.get("reason", "Queued"), tuple(summary.get("message", "").splitlines())
    return "not running", ("its `cox run` has ended before the job; the same command resumes it",)


def ask_coordinator(job: Manifest, objects: list[Manifest], pods: list[Manifest]) -> JobReport | None:
    """Returns the coordinator's report; None when it does not run or does not answer."""
    address = next((p["status"].get("podIP") for p in pods if _is_coordinator(p)), None)
    secrets = (o["data"] for o in objects if (o["kind"], o["metadata"]["name"]) == ("Secret", mounted_name(job)))
    token = next((data["token"] for data in secrets if "token" in data), None)
    if address is None or token is None:
        return None
    url = f"http://{names.host_port(address, names.PORT_COORDINATOR)}"
    try:
        with Client(url, base64.b64decode(token).decode(), _DEADLINE) as client:
            return client.get("/v1/report", JobReport)
    except CoxswainError:
        return None


def _is_coordinator(pod: Manifest) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.LABEL_ROLE) == "coordinator" and pod["status"]["phase"] == "Running"


def folder_reader(job_or_folder: str) -> FolderReader:
    """Of a work directory, or of a job below runs/. Raises Refused."""
    return FolderReader(find_workdir(job_or_folder))


def below_runs() -> Iterator[FolderReader]:
    """Of every work directory below runs/, and of each folder that may be one and is another user's."""
    for folder in filter(_may_be_run, _listed(RUNS)):
        yield FolderReader(folder)


def _may_be_run(folder: Path) -> bool:
    try:
        return (folder / "cluster").is_dir()
    except OSError:
        return True
