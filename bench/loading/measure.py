"""Figures of one system: what it costs to read, and what it goes on with behind its own state."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass
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
    """Seconds until the first batch; tokens a second, CPU a million tokens, memory of all processes once all of them read."""
    first: dict[int, float] = {}
    with Ranks(place, shape) as ranks:
        early = ranks.until("warm", lambda rank, said: first.setdefault(rank, said["seconds"]))
        before, began = sessions.cpu_seconds(ranks.sessions), time.monotonic()
        ranks.go_on()
        done = ranks.until("done")
        seconds, cpu = time.monotonic() - began, sessions.cpu_seconds(ranks.sessions) - before
        pids = sessions.processes(ranks.sessions)
        tokens = sum(last["tokens"] - one["tokens"] for one, last in zip(early, done, strict=True))
        return {
            "first": max(first.values()), "tokens": tokens / seconds, "cpu": cpu / tokens * 1e6,
            "memory": sessions.memory(pids), "processes": len(pids) - shape.ranks,  # each rank has a `timeout` above it
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """The digests of each batch of all ranks, sorted, and rank 0's state behind each."""

    batches: list[list[str]]
    states: list[Any]


def resumed(place: Place, whole: Stream, after: Shape, scratch: Path) -> str:
    """Whether the batches behind the state of the middle of a stream are those without a stop: `same`, `other`, or `refused`.

    A batch of all ranks is compared as a set of documents. `after` has as many documents and tokens in it as the stream.
    """
    half = len(whole.batches) // 2
    file = scratch / "state.json"
    file.write_text(json.dumps(whole.states[half - 1]))
    try:
        rest = read(place, after, "--state", file).batches
    except RuntimeError:
        return "refused"
    pairs = list(zip(whole.batches[half:], rest, strict=False))
    return "same" if pairs and all(one == other for one, other in pairs) else "other"


def read(place: Place, shape: Shape, *more: object) -> Stream:
    batches: dict[int, list[tuple[list[str], Any]]] = defaultdict(list)

    def keep(rank: int, said: dict[str, Any]) -> None:
        if said["event"] == "batch":
            batches[rank].append((said["digests"], said["state"]))

    with Ranks(place, shape, "--digests", *more) as ranks:
        ranks.until("warm", keep)
        ranks.go_on()
        ranks.until("done", keep)
    together = zip(*(batches[rank] for rank in range(shape.ranks)), strict=False)
    batches_of_all = [sorted(d for digests, _ in row for d in digests) for row in together]
    return Stream(batches_of_all, [state for _, state in batches[0]])
