"""Coxswain's loaders, constructors and coordinator in a real `cox run`: what they use while trainers train."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from bench.engine import cpu_by_service
from bench.loading import sessions
from bench.loading.corpus import Corpus
from bench.loading.readers.coxswain import objects
from tests.local.jobs import SERVICES, Run, descendants, read_process, wait_until

DATA = ("loader", "constructor", "coordinator")
TINY = {"layers": 1, "hidden": 16, "heads": 1, "kvHeads": 1, "feedForward": 16, "vocabulary": 4096}
WARM, DEADLINE = 3, 600.0


def cost(corpus: Corpus, folder: Path, ranks: int, tokens: int, steps: int) -> dict[str, Any]:
    """CPU a million tokens and memory of the services. Trainers compute on the same processors: no tokens a second."""
    found = objects(corpus, tokens * ranks)
    spec = found[-1]["spec"]
    spec |= {"image": "coxswain-train", "model": {"config": TINY}, "trainers": {"count": ranks, "devicesPerTrainer": 1}}
    spec["checkpoint"] = {"uri": f"file://{folder}/checkpoints-{ranks}", "everySteps": 100_000}
    run = Run(folder / f"run-{ranks}", found)
    cox = run.start()
    try:
        wait_until(lambda: len(run.steps()) > WARM or cox.poll() is not None, "the first steps", DEADLINE)
        before, begun = cpu_by_service(cox.pid), len(run.steps())
        wait_until(lambda: len(run.steps()) >= begun + steps or cox.poll() is not None, "all steps", DEADLINE)
        after, ended = cpu_by_service(cox.pid), len(run.steps())
        pids = _of_services(cox.pid)
        used = sessions.memory(pids)
    finally:
        cox.send_signal(signal.SIGKILL)  # nothing outlives it
        cox.communicate()
    if ended < begun + steps:
        raise RuntimeError(f"`cox run` ended by itself:\n{run.logs()}")
    read = sum(run.steps()[step]["tokens"] for step in range(begun, ended))
    cpu = sum(after[name] - before.get(name, 0.0) for name in DATA)
    return {"cpu": cpu / read * 1e6, "memory": used, "processes": len(pids)}


def _of_services(root: int) -> list[int]:
    modules = {SERVICES[name].encode() for name in DATA}
    return [pid for pid in descendants(root) if modules & set(read_process(pid, "cmdline").split(b"\0"))]
