"""Coxswain's loaders, constructors and coordinator in a real `cox run`: what they use while trainers train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.engine import measure
from bench.loading import sessions
from bench.loading.corpus import Corpus
from bench.loading.readers.coxswain import objects
from tests.local.jobs import SERVICES, descendants, read_process

DATA = ("loader", "constructor", "coordinator")
TINY = {"layers": 1, "hidden": 16, "heads": 1, "kvHeads": 1, "feedForward": 16, "vocabulary": 4096}


def cost(corpus: Corpus, folder: Path, ranks: int, tokens: int, steps: int) -> dict[str, Any]:
    """CPU a million tokens and memory of the services. Trainers compute on the same processors: no tokens a second."""
    used: dict[str, Any] = {}

    def look(root: int) -> None:
        pids = _of_services(root)
        used.update(memory=sessions.memory(pids), processes=len(pids))

    found = measure(folder, ranks, steps, _job(corpus, folder, ranks, tokens), look)
    return {"cpu": 1000 * sum(found.cpu_per_1000.get(name, 0.0) for name in DATA), **used}


def _job(corpus: Corpus, folder: Path, ranks: int, tokens: int) -> list[dict[str, Any]]:
    """As others read the corpus, with a model that takes next to nothing."""
    found = objects(corpus, tokens * ranks)
    found[-1]["spec"] |= {
        "image": "coxswain-train", "model": {"config": TINY}, "trainers": {"count": ranks, "devicesPerTrainer": 1},
        "checkpoint": {"uri": f"file://{folder}/checkpoints-{ranks}", "everySteps": 100_000},
    }  # fmt: skip
    return found


def _of_services(root: int) -> list[int]:
    modules = {SERVICES[name].encode() for name in DATA}
    return [pid for pid in descendants(root) if modules & set(read_process(pid, "cmdline").split(b"\0"))]
