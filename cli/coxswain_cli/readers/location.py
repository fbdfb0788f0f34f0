"""A run as its checkpoint location records it: no process and no cluster is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from coxswain.errors import Refused
from coxswain.planlog import manifest_key
from coxswain_cli.readers.stored_run import Checkpoint, StoredRun, open_location
from coxswain_cli.readers.values import Manifest, Progress, Seen, Write
from coxswain_cli.reporting.formatting import seconds_of
from coxswain_cli.reporting.model import RecordedRun
from coxswain_cli.reporting.read import read_steps
from coxswain_cli.reporting.step_selection import chosen_steps
from coxswain_link.store import NotFound

_AHEAD = "what its checkpoint location records; a job that runs is ahead of it by up to checkpoint.everySteps"


class LocationReader:
    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")

    @property
    def report_path(self) -> Path:
        """In the current folder: what is stored belongs to the run."""
        return Path(f"{self._name(self._open())}-report.html")

    def look(self) -> Seen:
        run = self._open()
        job = self._job(run)
        lines, _, _ = read_steps(run.step_lines(last=True))
        saved = job["status"].get("lastCheckpoint", {}).get("step", 0)
        last = lines[-1] if lines else None
        progress = Progress(max(saved, last.step + 1 if last else 0), loss=last.loss if last else None)
        return Seen(job, "Stored", (_AHEAD,), running=False, step=progress.step, progress=progress, mixes=run.mixes())

    def record(self, steps: tuple[int, ...]) -> RecordedRun:
        run = self._open()
        job = self._job(run)
        lines, redone, unreadable = read_steps(run.step_lines())
        chosen_steps(lines, {}, steps)  # refuses steps that are asked for: timings are not stored
        return RecordedRun(
            name=job["metadata"]["name"],
            steps=lines,
            status=job["status"],
            redone=redone,
            unreadable=unreadable,
            mixes=run.mixes(),
            notes=(f"{_AHEAD}; it holds neither events nor timings",),
        )

    def logs(self, member: str, follow: bool, write: Write) -> None:
        message = f"{self._uri} holds no logs; name the work directory, or the job with --namespace"
        raise Refused("NoLogs", message)

    def _open(self) -> StoredRun:
        try:
            return open_location(self._uri)
        except NotFound as error:
            raise Refused("NoRun", str(error)) from error

    def _name(self, run: StoredRun) -> str:
        return str(self._job(run)["metadata"]["name"])

    def _job(self, run: StoredRun) -> Manifest:
        """As much of a TrainingJob as the location names. Raises Refused where it holds no run."""
        owner, (kept, newest) = run.owner(), run.checkpoints()
        if owner is None and newest is None:
            message = f"{self._uri} holds no run: neither run.json nor a checkpoint; name a job's checkpoint.uri"
            raise Refused("NoRun", message)
        full = owner.job if owner else newest.job if newest else ""
        namespace, _, name = full.rpartition("/")
        status: Manifest = {"worldGeneration": run.generation()}
        if newest is not None:
            status["lastCheckpoint"] = self._checkpoint(newest, kept)
        return {"kind": "TrainingJob", "metadata": {"name": name or "run", "namespace": namespace}, "status": status}

    def _checkpoint(self, newest: Checkpoint, kept: list[int]) -> Manifest:
        time = seconds_of(newest.time)
        when = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds") if time else ""
        uri = f"{self._uri}/{manifest_key(newest.step)}"
        return {
            "step": newest.step, "uri": uri, "time": when, "tokens": newest.tokens, "kept": kept,
            "streamDigest": newest.stream_digest,
        }  # fmt: skip
