"""A straggler on real processes: four replicas of `cox run`, one of which is throttled to a part of its share of a core.

In each round the same steps run on equal devices, with our action Migrate, and by the rivals: rigid (action None), data-only
(whole sequences are weighed by speed, none is shared), and without the device (three replicas). Restarting
without the device is that, less the seconds that `cox run` takes to its first step. Each worker has a control group with the
same share; the throttled one's is cut once its history is known. All loads are equal but for what each balance makes of
them. A replica holds the longest sequence, in all runs alike: with less memory data-only cannot run at all.
`python -m bench.straggler_cpu [--rounds 3]`, as root: it makes control groups.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cpu_shares import Shares
from bench.hdp_cpu import MODEL, check_runs, complete, started, workers
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import open_store
from tests.local.jobs import ENDLESS, Run, job_objects, wait_until, write_corpus

REPLICAS = 4
SLOW = 1  # the trainer that is throttled
ONSET = 20  # steps: longer than detection learns a device's history for
WITHIN = 20  # steps from onset in which it must be planned around
DEADLINE = 900.0
ACTIONS = {"ours": "Migrate", "rebalance": "Rebalance", "data-only": "Rebalance"}  # of runs that act
RIVALS = ("rigid", "data-only", "drop-device", "restart")


@dataclass(frozen=True)
class Result:
    """One run. Steps are counted from the onset; None: it never was."""

    name: str
    tokens_per_second: float  # over the measured steps
    first_step: float  # seconds from the start of `cox run` to the end of its first step
    confirmed: int | None = None
    planned_around: int | None = None
    left_out: int | None = None  # from here on the throttled device is on standby
    same_processes: bool = True  # whether each worker at the end is one of the beginning


def job_of(folder: Path, name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """No checkpoint within the measurement."""
    trainers = REPLICAS - 1 if name == "drop-device" else REPLICAS
    found = job_objects(
        f"file://{folder}/corpus",
        f"file://{folder}/{name}/checkpoints",
        trainers=trainers,
        model={"config": MODEL},
        batch={"tokensPerStep": options.tokens, "maxSequenceTokens": options.longest},
        stop={"steps": ENDLESS},
        stragglers={"action": ACTIONS.get(name, "None")},
    )
    spec = found[-1]["spec"]
    spec["checkpoint"]["everySteps"] = ENDLESS
    degree = 1 if name == "data-only" else trainers
    hybrid = {"tokensPerReplica": options.capacity, "maxDegree": degree, "balance": "Makespan"}
    spec["parallelism"]["hybridData"] = hybrid
    return found


def measure(folder: Path, name: str, shares: Shares, options: argparse.Namespace) -> Result:
    """Throttles one worker after ONSET steps, if any, and measures the last steps."""
    run, began = Run(folder / name, job_of(folder, name, options)), time.monotonic()
    trainers = REPLICAS - 1 if name == "drop-device" else REPLICAS
    with started(run) as cox:
        found: list[int] = wait_until(
            lambda: complete(_by_trainer(cox.pid), trainers) or check_runs(cox, run), "workers", DEADLINE
        )
        shares.put(found)
        wait_until(lambda: run.steps() or check_runs(cox, run), "the first step", DEADLINE)
        first = time.monotonic() - began
        reach(run, cox, ONSET)
        onset = max(run.steps()) + 1
        if name in (*ACTIONS, "rigid"):
            shares.limit(SLOW, options.share / options.slowdown)
        around = reach_plan_around(run, cox, folder / name / "checkpoints", onset) if name in ACTIONS else None
        reach(run, cox, onset + options.settle + options.steps)
        same = set(_by_trainer(cox.pid)) <= set(found)
    return Result(
        name, rate_of(run, onset + options.settle, options.steps), first, _confirmed(run, onset), around,
        _left_out(run, onset) if name in ACTIONS else None, same,
    )  # fmt: skip


def reach(run: Run, cox: subprocess.Popen[str], step: int) -> None:
    wait_until(lambda: step in run.steps() or check_runs(cox, run), f"step {step}", DEADLINE)


def reach_plan_around(run: Run, cox: subprocess.Popen[str], checkpoints: Path, onset: int) -> int | None:
    """Read while it runs: a later checkpoint removes the records before it."""
    last = onset + WITHIN
    wait_until(
        lambda: _planned_around(checkpoints, onset) is not None or last in run.steps() or check_runs(cox, run),
        "a plan with speeds", DEADLINE,
    )  # fmt: skip
    return _planned_around(checkpoints, onset)


def rate_of(run: Run, first: int, steps: int) -> float:
    """Tokens a second of so many steps, by when they ended."""
    timings = {line["step"]: line["ranks"] for line in run.lines("timings.jsonl")}
    ends = [max(rank["ended"] for rank in timings[step]) for step in (first - 1, first + steps - 1)]
    return sum(run.steps()[k]["tokens"] for k in range(first, first + steps)) / (ends[1] - ends[0])


def _by_trainer(root: int) -> list[int]:
    """Workers, in the order of their trainers. A process may end while they are listed."""
    found = {pid: name for pid in workers(root) if (name := _pod_of(pid))}
    return sorted(found, key=found.__getitem__)


def _pod_of(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return ""
    return next((v for v in variables if v.startswith("POD_NAME=")), "")


def _confirmed(run: Run, onset: int) -> int | None:
    """By the event: steps from the onset."""
    for line in run.lines("events.jsonl"):
        if line["reason"] == "StragglerDetected":
            return int(line["message"].partition("confirmed at step ")[2].split(".")[0].split(";")[0]) - onset
    return None


def _planned_around(checkpoints: Path, onset: int) -> int | None:
    """The first step whose record in the plan log has speeds."""
    log = PlanLog(open_store(f"file://{checkpoints}"))
    places = [map(int, re.findall(r"\d+", key)) for key in log.placements_before(ENDLESS)]  # generation, segment, part
    parts = [part for place in places if (part := log.placement(*place))]
    return min((part.first_step - onset for part in parts if part.speeds), default=None)


def _left_out(run: Run, onset: int) -> int | None:
    """The first step with fewer ranks."""
    lines = run.lines("timings.jsonl")
    return next((line["step"] - onset for line in lines if len(line["ranks"]) < REPLICAS), None)


def optimum(normal: float, slowdown: float) -> float:
    """Tokens a second where every device gives what it can: reference N / ((N - n) + sum of 1 / x) for the time."""
    return normal * (REPLICAS - 1 + 1 / slowdown) / REPLICAS


def summary(rounds: list[dict[str, Result]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds of ratios within a round."""
    rates = [{name: r.tokens_per_second for name, r in each.items()} for each in rounds]
    for each, found in zip(rates, rounds, strict=True):
        steps = options.horizon * options.tokens
        each["restart"] = steps / (steps / each["drop-device"] + found["drop-device"].first_step)
        each["optimum"] = optimum(each["normal"], options.slowdown)
    return {
        "tokens/s": {name: [each[name] for each in rates] for name in rates[0]},
        "optimum over ours": median(each["optimum"] / each["ours"] for each in rates),
        "ours over": {
            rival: median(each["ours"] / each[rival] for each in rates) for rival in RIVALS if rival in rates[0]
        },
        "steps to confirm": [each["ours"].confirmed for each in rounds],
        "steps to plan around": [each["ours"].planned_around for each in rounds],
        "steps to leave out": [each["ours"].left_out for each in rounds],
        "same processes": all(each["ours"].same_processes for each in rounds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=int, default=WITHIN, help="steps from the onset to the measurement")
    parser.add_argument("--steps", type=int, default=20, help="measured, of each run")
    parser.add_argument("--share", type=float, default=0.4, help="of a core, for each replica")
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--longest", type=int, default=1024, help="maxSequenceTokens")
    parser.add_argument(
        "--capacity", type=int, default=1024, help="tokensPerReplica; below --longest, rings are needed"
    )
    parser.add_argument("--tokens", type=int, default=8192, help="tokensPerStep")
    parser.add_argument("--horizon", type=int, default=100, help="steps over which a restart is paid for")
    parser.add_argument("--only", nargs="+", default=("normal", "ours", "rigid", "data-only", "drop-device"))
    options = parser.parse_args()
    if options.capacity < options.longest and "data-only" in options.only:
        parser.error("data-only shares no sequence: give --capacity of at least --longest, or leave it out of --only")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that runs end and groups are removed
    rounds: list[dict[str, Result]] = []
    with tempfile.TemporaryDirectory(prefix="coxswain-straggler-") as name:
        for number in range(options.rounds):
            folder = Path(name) / str(number)
            write_corpus(folder / "corpus")
            found = {}
            for each in options.only[number % len(options.only) :] + options.only[: number % len(options.only)]:
                with Shares(REPLICAS, options.share) as shares:
                    found[each] = measure(folder, each, shares, options)
                print(json.dumps(asdict(found[each])), flush=True)
            rounds.append(found)
    print(json.dumps({"bench": "straggler_cpu", "options": vars(options), **summary(rounds, options)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
