"""A coordinator under 1,024 simulated ranks: its processor time and memory, the bytes of plan a rank gets, and its loop's lag.

The coordinator is a process of its own with the real driver, planner and store, over real HTTP. Another process plays the
members by the real protocol: agents, constructors and ranks with their directives, plans, reports and heartbeats. A rank
continues alone by the worker's own limits: a refused or broken connection, a connection that takes too long, an outbox
without an answer.

`make bench-coordinator`, or `python -m bench.coordinator [--ranks 1024] [--sequences 20000] [--step-seconds 10] [--steps 10]`.
Prints one JSON object, then a line of text. `--block 0.6` stops the coordinator's loop for so long at every step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.coordinator_members import Members
from bench.coordinator_server import Shape
from bench.scale.processes import cpu_seconds, usage

TARGETS = {"cpu_share": 0.20, "plan_kilobytes_largest": 64.0, "ranks_alone": 0}


@dataclass(frozen=True)
class Figures:
    """Of the measured steps. CPU: seconds of the coordinator's process over wall seconds."""

    ranks: int
    sequences: int
    step_seconds: float
    steps: int
    cpu_share: float
    plan_kilobytes_mean: float  # a rank and step: directive and feed
    plan_kilobytes_largest: float
    placement_kilobytes_largest: float  # an object of the plan log, compressed
    ranks_alone: int  # steps that a rank began alone, summed over ranks
    lag_p99_milliseconds: float
    lag_largest_milliseconds: float
    requests_a_second: float
    late_seconds: float  # the longest wait of a rank for its directive
    peak_mebibytes: float  # of the coordinator's memory

    def missed(self) -> list[str]:
        values = asdict(self)
        return [name for name, target in TARGETS.items() if values[name] > target]


def describe(f: Figures) -> str:
    missed = f.missed()
    verdict = f"missed: {', '.join(missed)}" if missed else "targets met"
    return (
        f"{f.ranks} ranks, {f.sequences} sequences a step, steps of {f.step_seconds:g} s: {f.cpu_share:.1%} of a core, "
        f"{f.plan_kilobytes_mean:.1f} KB of plan a rank and step (largest {f.plan_kilobytes_largest:.1f}), "
        f"{f.ranks_alone} alone, lag p99 {f.lag_p99_milliseconds:.0f} ms, {f.peak_mebibytes:.0f} MiB of memory; {verdict}"
    )


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0


async def measure(shape: Shape, folder: Path, block: float = 0.0) -> Figures:
    """Starts a coordinator, plays its members, and reads its figures."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.coordinator_server", str(folder), json.dumps(asdict(shape)), str(block),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        members = Members(shape, int(await server.stdout.readline()))
        await members.play(lambda: cpu_seconds(server.pid))
        peak = usage(server.pid).peak
    finally:
        server.send_signal(signal.SIGTERM)
        lags: list[tuple[float, float]] = json.loads(await server.stdout.read() or b"[]")
        await server.wait()
    return figures(shape, members, lags, folder, peak)


def figures(
    shape: Shape, members: Members, lags: list[tuple[float, float]], folder: Path, peak_mebibytes: float
) -> Figures:
    (began, cpu_before), (ended, cpu_after) = members.window
    measured = [1000 * lag for at, lag in lags if began <= at <= ended]
    plans = [1e-3 * size for size in members.plan_bytes.values()]
    segments = (folder / "store").glob("log/placements/**/*.zst")
    return Figures(
        ranks=shape.ranks,
        sequences=shape.sequences,
        step_seconds=shape.step_seconds,
        steps=members.measured_steps,
        cpu_share=round((cpu_after - cpu_before) / (ended - began), 4),
        plan_kilobytes_mean=round(sum(plans) / len(plans), 2),
        plan_kilobytes_largest=round(max(plans), 2),
        placement_kilobytes_largest=round(max(1e-3 * s.stat().st_size for s in segments), 1),
        ranks_alone=members.alone,
        lag_p99_milliseconds=round(percentile(measured, 0.99), 1),
        lag_largest_milliseconds=round(max(measured, default=0.0), 1),
        requests_a_second=round(members.requests / (ended - began), 1),
        late_seconds=round(members.latest, 3),
        peak_mebibytes=round(peak_mebibytes, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("ranks", 1024), ("devices", 8), ("sequences", 20_000), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-seconds", type=float, default=10.0)
    parser.add_argument("--block", type=float, default=0.0, help="seconds for which the loop stops at every step")
    args = parser.parse_args()
    shape = Shape(args.ranks, args.devices, args.sequences, args.steps, args.step_seconds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(shape, Path(folder), args.block))
    print(json.dumps({"bench": "coordinator", "seconds": round(time.monotonic() - began), **asdict(found)}))
    print(describe(found))


if __name__ == "__main__":
    main()
