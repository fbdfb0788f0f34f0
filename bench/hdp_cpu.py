"""Placements of the same steps on real processes and real text: tokens a second of each balance, predicted beside measured.

Four replicas of `cox run` train on the Python standard library's sources and documentation, whose files have a long tail of
lengths. Every balance trains on the same steps from the same seed; the losses must agree. Each worker has a control group
with the same share of a core, so that a replica that waits lends its time to none of the others, as with devices of their
own. Before each round `coxswain_train.profile` measures four such devices at a time, and the plans of the round go by
that. `python -m bench.hdp_cpu [--rounds 3] [--steps 12] [--share 0.4]`, as root: it makes control groups.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cpu_shares import Shares
from coxswain.cost.error import Error, error_of
from tests.local.jobs import Run, descendants, job_objects, source, wait_until

REPLICAS = 4
BALANCES = ("Static", "Naive", "ByteScale", "FlexSP", "Makespan")
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "kvHeads": 2, "feedForward": 384, "vocabulary": 4096}  # llama-tiny
WARM = 2  # steps before the clock starts
DEADLINE = 900.0  # seconds for a run, or a profile
FORK_SERVER, PROFILE = "coxswain_train.agent.forkserver", "coxswain_train.profile"


@dataclass(frozen=True)
class Result:
    """One run of one balance. `planned` and `measured`: seconds of its steps."""

    balance: str
    tokens_per_second: float
    planned: list[float]
    measured: list[float]
    idle: float
    losses: list[float]

    @property
    def error(self) -> Error:
        return error_of(zip(self.planned, self.measured, strict=True))


def objects(folder: Path, balance: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The job; no checkpoint within the measurement."""
    found = job_objects(
        f"file://{folder}/corpus",
        f"file://{folder}/checkpoints-{balance}",
        trainers=REPLICAS,
        model={"config": MODEL},
        batch={"tokensPerStep": options.tokens, "maxSequenceTokens": options.longest},
        stop={"steps": 100_000},
    )
    tokenizer = {"file": {"uri": f"file://{folder}/corpus/tokenizer.json"}}
    corpus = f"file://{folder}/corpus"
    found[0] = source("code", f"{corpus}/code", "Parquet", "**/*.parquet", tokenizer=tokenizer)
    found[1] = source("docs", f"{corpus}/docs", "Jsonl", "**/*.jsonl", tokenizer=tokenizer)
    spec = found[-1]["spec"]
    spec["checkpoint"]["everySteps"] = 100_000
    spec["parallelism"]["hybridData"] = {
        "tokensPerReplica": options.capacity, "maxDegree": REPLICAS, "balance": balance,
    }  # fmt: skip
    return found


def profile(folder: Path, shares: Shares, options: argparse.Namespace) -> Path:
    """Measures as many devices as the job has, each in its control group."""
    job, output = folder / "profile-job.yaml", folder / "profile.json"
    job.write_text("\n---\n".join(map(json.dumps, objects(folder, "Makespan", options))))
    command = [sys.executable, "-m", PROFILE, "--job", str(job), "--processes", str(REPLICAS)]
    command += ["--seconds", str(options.profile_seconds), "--output", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        shares.put(wait_until(lambda: complete(_ranks(process)), "ranks of the profile", 60.0))
        _, said = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    if process.returncode or not output.exists():
        raise RuntimeError(f"the profile failed:\n{said}")
    print(f"profile of {REPLICAS} devices of {options.share:g} cores: {said.strip().splitlines()[-1]}", flush=True)
    return output


def measure(folder: Path, balance: str, profile_file: Path, shares: Shares, options: argparse.Namespace) -> Result:
    """Runs until enough steps are done, then kills the run."""
    job = objects(folder, balance, options)
    job[-1]["spec"]["parallelism"]["profile"] = {"uri": f"file://{profile_file}"}
    with tempfile.TemporaryDirectory(prefix=f"{balance.lower()}-", dir=folder) as name:
        run = Run(Path(name), job)
        with started(run) as cox:
            shares.put(wait_until(lambda: complete(workers(cox.pid)) or check_runs(cox, run), "workers", DEADLINE))
            last = WARM + options.steps
            wait_until(lambda: len(run.steps()) > last or check_runs(cox, run), "all steps", DEADLINE)
        return _result(balance, run, last)


def _result(balance: str, run: Run, last: int) -> Result:
    steps = [run.steps()[k] for k in range(WARM, last)]
    timings = {line["step"]: line["ranks"] for line in run.lines("timings.jsonl")}
    ends = [max(rank["ended"] for rank in timings[step]) for step in (WARM - 1, last - 1)]
    return Result(
        balance=balance,
        tokens_per_second=sum(s["tokens"] for s in steps) / (ends[1] - ends[0]),
        planned=[s["planned_seconds"] for s in steps],
        measured=[s["seconds"] for s in steps],
        idle=sum(s["idle_fraction"] * s["seconds"] for s in steps) / sum(s["seconds"] for s in steps),
        losses=[s["loss"] for s in steps],
    )


@contextmanager
def started(run: Run) -> Iterator[subprocess.Popen[str]]:
    """The `cox run` of a run, which is killed at the end of the block."""
    cox = run.start()
    try:
        yield cox
    finally:
        cox.send_signal(signal.SIGKILL)  # nothing outlives it
        cox.communicate()


def _ranks(process: subprocess.Popen[str]) -> list[int]:
    if process.poll() is not None:
        raise RuntimeError(f"the profile failed:\n{process.communicate()[1]}")
    return [process.pid, *descendants(process.pid)]


def workers(root: int) -> list[int]:
    """The forks of fork servers below a run."""
    servers = [pid for pid in descendants(root) if _runs(pid, FORK_SERVER)]
    return [child for server in servers for child in descendants(server) if child in servers]


def _runs(pid: int, module: str) -> bool:
    try:
        return module in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False


def complete(pids: list[int], count: int = REPLICAS) -> list[int]:
    """The processes; none while there are fewer or more than `count`."""
    return pids if len(pids) == count else []


def check_runs(cox: subprocess.Popen[str], run: Run) -> None:
    """Raises when `cox run` has ended by itself."""
    if cox.poll() is not None:
        raise RuntimeError(f"`cox run` ended by itself:\n{run.logs()}")


def check_same(results: Sequence[Result]) -> None:
    """All balances trained the same steps, else nothing is comparable."""
    for losses in zip(*(r.losses for r in results), strict=True):
        if max(losses) > min(losses) * (1 + 1e-3):
            raise RuntimeError(f"losses of one step differ: {losses}")


def summary(rounds: Sequence[Sequence[Result]]) -> dict[str, Any]:
    """Medians over rounds; ratios of what was measured in the same round; errors of all steps."""
    found = {}
    for runs in zip(*rounds, strict=True):
        name = runs[0].balance
        ours = [next(r for r in each if r.balance == "Makespan") for each in rounds]
        pairs = [pair for r in runs for pair in zip(r.planned, r.measured, strict=True)]
        found[name] = {
            "tokens/s": [r.tokens_per_second for r in runs],
            "makespan over this": median(a.tokens_per_second / b.tokens_per_second for a, b in zip(ours, runs, strict=True)),
            "idle share": median(r.idle for r in runs),
            "planned step seconds": median(p for p, _ in pairs),
            "measured step seconds": median(m for _, m in pairs),
            "prediction off by": asdict(error_of(pairs)),
        }  # fmt: skip
    return found


def print_results(rounds: Sequence[Sequence[Result]], options: argparse.Namespace) -> None:
    found = summary(rounds)
    print(json.dumps({"bench": "hdp_cpu", "options": vars(options), "balances": found}))
    for name, each in found.items():
        off, rates = each["prediction off by"], each["tokens/s"]
        print(
            f"{name}: {median(rates):,.0f} tokens/s ({min(rates):,.0f} to {max(rates):,.0f}), makespan "
            f"{each['makespan over this']:.2f} x, idle {each['idle share']:.1%}; a step planned "
            f"{each['planned step seconds']:.2f} s, measured {each['measured step seconds']:.2f} s, off by {off['p50']:.1%} "
            f"(p50), {off['p95']:.1%} (p95)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="measured, of each run")
    parser.add_argument("--share", type=float, default=0.4, help="of a core, for each replica")
    parser.add_argument("--capacity", type=int, default=1024, help="tokensPerReplica")
    parser.add_argument("--longest", type=int, default=4096, help="maxSequenceTokens")
    parser.add_argument("--tokens", type=int, default=12288, help="tokensPerStep")
    parser.add_argument("--profile-seconds", type=float, default=40.0)
    parser.add_argument("--balances", nargs="+", default=BALANCES, help="Makespan is always one of them")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that runs end and groups are removed
    balances = dict.fromkeys([*options.balances, "Makespan"])
    rounds = []
    with tempfile.TemporaryDirectory(prefix="coxswain-hdp-") as name, Shares(REPLICAS, options.share) as shares:
        folder = Path(name)
        corpus = [sys.executable, "examples/make_corpus.py", "--output", str(folder / "corpus")]
        subprocess.run(corpus, check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE)
        for number in range(options.rounds):
            measured = profile(folder, shares, options)
            order = [*balances][number % len(balances) :] + [*balances][: number % len(balances)]
            results = {balance: measure(folder, balance, measured, shares, options) for balance in order}
            rounds.append([results[balance] for balance in balances])
            check_same(rounds[-1])
            print(", ".join(f"{r.balance} {r.tokens_per_second:,.0f} tokens/s" for r in rounds[-1]), flush=True)
    print_results(rounds, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
