"""Runs whose trainers come and go: `cox scale`, pods and their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.local.jobs import SERVICES, Run, descendants, job_objects, read_process


def living_job(corpus: str, folder: Path, trainers: int, **spec: Any) -> Run:
    """Trains until a test stops it, and saves only then."""
    bounds = {"count": trainers, "devicesPerTrainer": 1, "minCount": 1, "maxCount": 2}
    objects = job_objects(corpus, f"file://{folder}/c", trainers=1, **({"stop": {"steps": 100_000}} | spec))
    objects[-1]["spec"]["trainers"] = bounds
    objects[-1]["spec"]["checkpoint"]["everySteps"] = 10_000
    return Run(folder, objects)


def pod(cox: subprocess.Popen[str], trainer: int) -> set[int]:
    """Process ids of all of a trainer's pod."""
    name = f"-trainer-{trainer}".encode()
    words = {pid: read_process(pid, "environ").split(b"\0") for pid in descendants(cox.pid)}
    return {pid for pid, found in words.items() if any(w.startswith(b"POD_NAME=") and name in w for w in found)}


def agents_of(pids: set[int]) -> set[int]:
    return {pid for pid in pids if SERVICES["agent"].encode() in read_process(pid, "cmdline").split(b"\0")}


def send(pids: set[int], sent: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, sent)


def scale(run: Run, trainers: int) -> None:
    words = [sys.executable, "-m", "coxswain_cli", "scale", str(run.workdir), str(trainers)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"small: asked for {trainers} trainers\n"), done.stderr


def stop(run: Run, cox: subprocess.Popen[str]) -> None:
    cox.send_signal(signal.SIGINT)
    assert run.finish(cox) == 0, run.output + run.logs()
