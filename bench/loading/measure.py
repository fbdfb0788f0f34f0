"""Figures of one system: what it costs to read, and what it goes on with behind its own state."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.loading import sessions
from bench.loading.ranks import DEADLINE, Place, Ranks, Shape
from bench.recorded import ROOT

Figures = dict[str, Any]


def prepare(place: Place) -> Figures:
    """Seconds and bytes of the system's own form of the corpus, written once."""
    place.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        place.command("--prepare"), cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{place.system} could not prepare: {done.stderr[-2000:]}")
    size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
    return {"prepare": time.monotonic() - began, "written": size / 2**20}


def cost(place: Place, shape: Shape) -> Figures:
    """Seconds until the first batch; then, until the last, tokens a second, CPU a million tokens, memory of all processes."""
    with Ranks(place, shape) as ranks:
        first = ranks.until("first")
        before, began = sessions.cpu_seconds(ranks.sessions), time.monotonic()
        ranks.go_on()
        done = ranks.until("done")
        seconds, cpu = time.monotonic() - began, sessions.cpu_seconds(ranks.sessions) - before
        pids = sessions.processes(ranks.sessions)
        tokens = sum(last["tokens"] - early["tokens"] for early, last in zip(first, done, strict=True))
        return {
            "first": max(said["seconds"] for said in first), "tokens": tokens / seconds, "cpu": cpu / tokens * 1e6,
            "memory": sessions.memory(pids), "processes": len(pids),
        }  # fmt: skip


def resumed(place: Place, before: Shape, after: Shape, scratch: Path) -> str:
    """Whether the batches behind its own state are those without a stop: `same`, `other`, or that it refuses.

    A batch of all ranks is compared as a set of documents. Both shapes have as many documents and tokens in it.
    """
    half = before.batches // 2
    whole, states = _read(place, before)
    file = scratch / "state.json"
    file.write_text(json.dumps(states[half - 1]))
    try:
        rest, _ = _read(place, after, "--state", file)
    except RuntimeError:
        return "refused"
    pairs = list(zip(whole[half:], rest, strict=False))
    return "same" if pairs and all(one == other for one, other in pairs) else "other"


def _read(place: Place, shape: Shape, *more: object) -> tuple[list[list[str]], list[Any]]:
    """The digests of each batch of all ranks, sorted, and rank 0's state behind each."""
    batches: dict[int, list[tuple[list[str], Any]]] = defaultdict(list)

    def keep(rank: int, said: dict[str, Any]) -> None:
        batches[rank].append((said["digests"], said["state"]))

    with Ranks(place, shape, "--digests", *more) as ranks:
        ranks.until("first", keep)
        ranks.go_on()
        ranks.until("done", keep)
    together = zip(*(batches[rank] for rank in range(shape.ranks)), strict=False)
    return [sorted(d for digests, _ in row for d in digests) for row in together], [s for _, s in batches[0]]
