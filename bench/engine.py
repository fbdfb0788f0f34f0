"""The whole system beside a plain torch loop: tokens a second, CPU a token, hand-over, and where a
step's time goes.

In turns, several rounds: a plain loop in one process (bench/plain.py), `cox run` with one replica, `cox run` with two; same
stream, same model, one thread a worker. `make bench-engine`, or `python -m bench.engine [--rounds 5] [--steps 15]`.
CPU seconds stand beside wall time: only they mean something on a machine that runs other things too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_table import System, check_same, figures, print_results
from bench.recorded import keep
from bench.scale.processes import cpu_seconds
from coxswain_train.agent.devices import fork_server_environment
from tests.local.jobs import SERVICES, Run, descendants, job_objects, wait_until

TOKENS_PER_STEP, LONGEST = 4096, 1024
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "kvHeads": 2, "feedForward": 384, "vocabulary": 4096}  # llama-tiny
WARM = 3  # steps before the clock starts
DEADLINE = 300.0  # seconds for a run


def write_corpus(folder: Path) -> None:
    """Two sources of documents with a long tail of lengths."""
    draw = random.Random(11)
    for name, count in (("code", 1200), ("docs", 600)):
        (folder / name).mkdir(parents=True)
        texts = ("".join(draw.choices("etaoin shrdlu\n", k=int(60 * draw.paretovariate(0.8)))) for _ in range(count))
        lines = "".join(json.dumps({"text": text[:8000]}) + "\n" for text in texts)
        (folder / name / "all.jsonl").write_text(lines)


def objects(folder: Path, replicas: int) -> list[dict[str, Any]]:
    """The job: a step of one replica is one pack; no checkpoint within the measurement."""
    found = job_objects(
        f"file://{folder}/corpus",
        f"file://{folder}/checkpoints-{replicas}",
        trainers=replicas,
        model={"config": MODEL},
        batch={"tokensPerStep": TOKENS_PER_STEP, "maxSequenceTokens": LONGEST},
        stop={"steps": 100_000},
    )
    code, _, _, job = found
    code["spec"] |= {"format": "Jsonl", "include": "**/*.jsonl"}
    job["spec"]["checkpoint"]["everySteps"] = 100_000
    job["spec"]["parallelism"]["hybridData"]["tokensPerReplica"] = TOKENS_PER_STEP
    return found


def cpu_by_service(root: int) -> dict[str, float]:
    """CPU of all processes below and at `root`, by service."""
    spent: dict[str, float] = defaultdict(float)
    for pid in (root, *descendants(root)):
        try:
            cpu = cpu_seconds(pid)
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        names = [name for name, module in SERVICES.items() if module in command]
        # A worker is a fork of the fork server, under its name; the fork server idles during steps.
        spent[names[0].replace("forkserver", "worker") if names else "cox"] += cpu
    return dict(spent)


def measure(
    folder: Path,
    replicas: int,
    steps: int,
    job: list[dict[str, Any]] | None = None,
    look: Callable[[int], None] | None = None,
) -> System:
    """Runs until enough steps are done, then kills the run, which is not needed any more. `job`: another than `objects`. `look`
    gets the process id of `cox` before that.
    """
    run = Run(folder / f"run-{replicas}-{random.randrange(1 << 40):x}", job or objects(folder, replicas))
    cox = run.start()
    try:
        wait_until(lambda: len(run.steps()) > WARM or cox.poll() is not None, "the first steps", DEADLINE)
        before, first = cpu_by_service(cox.pid), len(run.steps())
        wait_until(lambda: len(run.steps()) >= first + steps or cox.poll() is not None, "all steps", DEADLINE)
        after, last = cpu_by_service(cox.pid), len(run.steps())
        if look is not None:
            look(cox.pid)
    finally:
        cox.send_signal(signal.SIGKILL)  # nothing outlives it
        cox.communicate()
    if last < first + steps:
        raise RuntimeError(f"`cox run` ended by itself:\n{run.logs()}")
    return _system(run, replicas, first, last, {s: after[s] - before.get(s, 0.0) for s in after})


def _system(run: Run, replicas: int, first: int, last: int, cpu: dict[str, float]) -> System:
    timings = {line["step"]: line["ranks"] for line in run.lines("timings.jsonl")}
    ends = [max(r["ended"] for r in timings[step]) for step in range(first - 1, last)]
    tokens = sum(run.steps()[step]["tokens"] for step in range(first, last))
    ranks = [r for step in range(first, last) for r in timings[step]]
    inside = sum(r["seconds"] for r in ranks)
    return System(
        replicas=replicas,
        tokens_per_second=tokens / (ends[-1] - ends[0]),
        step_seconds=float(np.median(np.diff(ends))),
        cpu_per_1000={service: round(1000 * spent / tokens, 4) for service, spent in sorted(cpu.items())},
        handover=[r["data_wait"] for r in ranks],
        reduce_share=sum(r["reduce"] for r in ranks) / inside,
        compute_share=sum(r["compute"] for r in ranks) / inside,
        first_loss=run.steps()[0]["loss"],
    )


def plain(folder: Path, steps: int) -> dict[str, Any]:
    """The plain loop in a process of its own, with the environment of a worker."""
    job = folder / "plain.yaml"
    job.write_text("\n---\n".join(json.dumps(o) for o in objects(folder, 1)))
    command = [
        sys.executable,
        "-m",
        "bench.plain",
        str(job),
        "--cache",
        f"file://{folder}/index",
        "--steps",
        str(steps),
    ]
    environment = fork_server_environment(os.environ, ())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        raise RuntimeError(f"the plain loop failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15, help="measured, of each run")
    parser.add_argument("--write", action="store_true", help="also into docs/results/engine.json")
    options = parser.parse_args()
    plains, ones, twos = [], [], []
    with tempfile.TemporaryDirectory(prefix="coxswain-engine-") as name:
        folder = Path(name)
        write_corpus(folder / "corpus")
        for _ in range(options.rounds):
            plains.append(plain(folder, options.steps))
            ones.append(measure(folder, 1, options.steps))
            twos.append(measure(folder, 2, options.steps))
    check_same(plains, [*ones, *twos])
    print_results(plains, ones, twos)
    if options.write:
        keep("engine", "The whole system beside a plain torch loop", "make bench-engine", figures(plains, ones, twos))
    return 0


if __name__ == "__main__":
    sys.exit(main())
