"""How long training stands still when a process is killed: one small run, SIGKILL to one process of
each kind in turn.

A pause is the longest time between the ends of two successive steps after the kill, by the workers' own clocks; what a step
takes anyway stands beside it. Where the kill cost a world, `resumed` is the time from the SIGKILL to the end of the first
step of the next one. A coordinator's death must not make a step stand still: no rank may wait longer between two of its steps
than a step takes; that the next coordinator starts on the workers' cores shows in the pause. (A fourth death of one pod within
ten minutes restarts the job, as its failurePolicy says.)

`make bench-recovery`, or `python -m bench.recovery [--only worker] [--rounds 3]`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from tests.local.jobs import SERVICES, Run, find_service, job_objects, wait_until, write_corpus

TARGETS = {"worker": 10.0, "constructor": 5.0, "loader": 5.0, "coordinator": 0.0}  # seconds; 0: no long wait
BEFORE, AFTER = 12, 12  # steps between a kill and the next
DEADLINE = 180.0  # seconds for these steps

End = tuple[float, int, int]  # (unix time by the slowest rank, step, generation)


@dataclass(frozen=True)
class Recovery:
    """Seconds and steps of one kill."""

    killed: str
    pause: float
    between: float  # the longest that a rank stood between the end of a step and the begin of its next
    resumed: float  # 0: the world stayed
    usual: float  # median time between the ends of two steps before the kill
    longest: float  # of these
    redone: int  # steps that were done twice
    generations: int  # worlds that it ended
    load: float  # load average of the minute before

    @property
    def cost(self) -> float:
        """The seconds that the target limits."""
        if TARGETS.get(self.killed) == 0.0:
            return self.between if self.between > self.usual else 0.0
        return max(self.pause, self.resumed)


def ends(run: Run) -> list[End]:
    """Every step done, in the order of time; each once a generation."""
    lines = {(line["step"], line["worldGeneration"]): line for line in run.lines("timings.jsonl")}
    return sorted((max(r["ended"] for r in line["ranks"]), *key) for key, line in lines.items())


def standing(run: Run, after: float) -> float:
    """Seconds that some rank stood between two successive steps of a world, the second of which
    ended after a unix time.
    """
    done = {
        (line["worldGeneration"], r["rank"], line["step"]): r
        for line in run.lines("timings.jsonl")
        for r in line["ranks"]
    }
    waits = [
        r["ended"] - r["seconds"] - before["ended"]
        for (generation, rank, step), r in done.items()
        if r["ended"] > after and (before := done.get((generation, rank, step - 1)))
    ]
    return max(waits, default=0.0)


def kill(run: Run, cox: subprocess.Popen[str], service: str) -> Recovery:
    """Sends one SIGKILL and measures the next AFTER steps."""
    top = max(step for _, step, _ in ends(run))
    pid = wait_until(lambda: find_service(cox, SERVICES[service]), service)
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: max(step for _, step, _ in ends(run)) >= top + AFTER, f"steps after the death of {service}", DEADLINE
    )
    return judge(service, ends(run), at, standing(run, at))


def judge(service: str, done: Sequence[End], at: float, between: float) -> Recovery:
    """From all steps of the run so far, of which some ended after the SIGKILL at unix time `at`;
    `between`: see `standing`.
    """
    gaps = [(sooner, later) for (sooner, _, _), (later, _, _) in pairwise(done)]
    before = [later - sooner for sooner, later in gaps if later <= at][-BEFORE:]
    old = [(step, generation) for end, step, generation in done if end <= at]
    top, world = max(step for step, _ in old), max(generation for _, generation in old)
    return Recovery(
        killed=service,
        between=between,
        pause=max(later - sooner for sooner, later in gaps if later > at),
        resumed=min((end - at for end, _, generation in done if generation > world), default=0.0),
        usual=statistics.median(before),
        longest=max(before),
        redone=sum(end > at and step <= top for end, step, _ in done),
        generations=done[-1][2] - world,
        load=os.getloadavg()[0],
    )


def measure(folder: Path, services: list[str], rounds: int) -> list[Recovery]:
    write_corpus(folder / "corpus")
    objects = job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints", stop={"steps": 100_000})
    run = Run(folder, objects)
    cox = run.start()
    try:
        found = []
        for service in services * rounds:
            steps = len(ends(run))
            wait_until(lambda: len(ends(run)) >= steps + BEFORE, "the steps before", DEADLINE)  # noqa: B023  at once
            found.append(kill(run, cox, service))
        return found
    finally:
        cox.send_signal(signal.SIGKILL)  # nothing outlives it
        cox.communicate()


def describe(service: str, found: Sequence[Recovery]) -> str:
    pauses, costs = [r.pause for r in found], [r.cost for r in found]
    target = TARGETS.get(service)
    verdict = "" if target is None else f"; target {target:g} s: {'met' if max(costs) <= target else 'MISSED'}"
    resumed = statistics.median(r.resumed for r in found)
    between = max(r.between for r in found)
    return (
        f"{service}: longest pause {statistics.median(pauses):.2f} s ({min(pauses):.2f} to {max(pauses):.2f}), "
        + (f"next world's first step after {resumed:.2f} s, " if resumed else "")
        + f"no rank stood between two steps for more than {between:.3f} s, "
        f"a step takes {statistics.median(r.usual for r in found):.2f} s (up to {max(r.longest for r in found):.2f}), "
        f"{max(r.redone for r in found)} steps again, {max(r.generations for r in found)} new worlds, "
        f"load {max(r.load for r in found):.1f} on {os.cpu_count()} cores{verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*SERVICES], action="append")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    services = options.only or [*TARGETS]
    with tempfile.TemporaryDirectory(prefix="coxswain-recovery-") as folder:
        found = measure(Path(folder), services, options.rounds)
    print(json.dumps([asdict(recovery) for recovery in found]))
    for service in services:
        print(describe(service, [r for r in found if r.killed == service]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
