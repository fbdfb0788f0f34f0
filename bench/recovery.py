"""How long training stands still when a process is killed: one small run, SIGKILL to one process of each kind in turn.

A pause is the longest time between the ends of two successive steps after the kill, by the workers' own clocks; of it, what a
step takes anyway is told beside it. `make bench-recovery`, or `python -m bench.recovery [--only worker]`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from tests.local.jobs import SERVICES, Run, find_service, job_objects, wait_until, write_corpus

TARGETS = {"worker": 10.0, "constructor": 5.0, "loader": 5.0, "coordinator": 0.0}  # seconds; 0: no step stands still
BEFORE, AFTER = 12, 12  # steps between a kill and the next
DEADLINE = 180.0  # seconds for these steps


@dataclass(frozen=True)
class Recovery:
    """Seconds and steps of one kill."""

    killed: str
    pause: float
    usual: float  # median time between the ends of two steps before the kill
    redone: int  # steps that were done twice
    generations: int  # worlds that it cost


def ends(run: Run) -> list[tuple[float, int, int]]:
    """(end by the slowest rank, step, generation) of every step done, in the order of time; each once a generation."""
    lines = {(line["step"], line["worldGeneration"]): line for line in run._lines("timings.jsonl")}
    return sorted((max(r["ended"] for r in line["ranks"]), *key) for key, line in lines.items())


def kill(run: Run, cox: object, service: str) -> Recovery:
    before = ends(run)
    at, top = time.time(), max(step for _, step, _ in before)
    pid = wait_until(lambda: find_service(cox, SERVICES[service]), service)
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: max(step for _, step, _ in ends(run)) >= top + AFTER, f"steps after the death of {service}", DEADLINE
    )
    done = ends(run)
    moments = [end for end, _, _ in done]
    gaps = [later - sooner for sooner, later in pairwise(moments) if later > at]
    usual = [later - sooner for sooner, later in pairwise(moments) if later <= at][-BEFORE:]
    again = [step for end, step, _ in done if end > at and step <= top]
    return Recovery(service, max(gaps), statistics.median(usual), len(again), done[-1][2] - before[-1][2])


def measure(folder: Path, services: list[str]) -> list[Recovery]:
    write_corpus(folder / "corpus")
    objects = job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints", stop={"steps": 100_000})
    run = Run(folder, objects)
    cox = run.start()
    try:
        found = []
        for service in services:
            steps = len(ends(run))
            wait_until(lambda: len(ends(run)) >= steps + BEFORE, "the steps before", DEADLINE)  # noqa: B023  at once
            found.append(kill(run, cox, service))
        return found
    finally:
        cox.send_signal(signal.SIGKILL)  # nothing outlives it
        cox.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*SERVICES], action="append")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), parser.parse_args().only or ["worker", "constructor", "loader", "coordinator"])
    print(json.dumps([asdict(recovery) for recovery in found]))
    for r in found:
        target = f", target {TARGETS[r.killed]:g} s" if r.killed in TARGETS else ""
        print(
            f"{r.killed}: longest pause {r.pause:.2f} s (a step takes {r.usual:.2f} s{target}), "
            f"{r.redone} steps again, {r.generations} new worlds"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
