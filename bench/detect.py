"""Detection of stragglers in simulated worlds: steps until confirmed, false positives, flapping, microseconds a step.

    python -m bench.detect [--seeds 20] [--steps 800] [--parts onset,quiet,flapping,overhead] [--output FILE]

Devices differ by up to 4 % for good, and each figure has 2 % of noise (a probe's 1 %). The false-positive set: pauses of
0.1 to 0.5 s every 300 steps of a rank, drift of the fleet by 2 %, long sequences that take up to 1.5 times as long as
modelled on one random replica each step (with the lengths reported, and without), a whole cluster that slows down by 1.3, and all
of these at once. Prints lines of text, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coxswain.stragglers.detector import Detector
from coxswain.stragglers.values import Floats, Place, Report, State, Step

SLOWDOWNS = (1.12, 1.15, 1.25, 1.5, 2.57, 5.42)
SHORT, LONG = 4096, 32768  # tokens
ONSET = 40  # step


@dataclass
class World:
    """`depth` stages of `tensor` devices for each replica; nodes of 8. `slow`: a factor by rank, changed as a test likes."""

    replicas: int = 4
    depth: int = 4
    tensor: int = 4
    seed: int = 0
    pauses: bool = False
    drift: bool = False
    long: bool = False
    lengths: bool = False  # reported
    shared: float = 1.0  # slowdown of the whole cluster from ONSET on
    loss: float = 1.0  # seconds of the last stage over those modelled
    noise: float = 0.02
    spread: float = 0.04
    slow: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.ranks = self.replicas * self.depth * self.tensor
        self.slow = np.ones(self.ranks)
        self.natural = 1 + self.random.uniform(-self.spread, self.spread, self.ranks)
        self.replica = np.arange(self.ranks) // (self.depth * self.tensor)
        self.stage = np.arange(self.ranks) // self.tensor % self.depth

    @property
    def places(self) -> list[Place]:
        return [
            Place(int(self.replica[r]), int(self.stage[r]), r % self.tensor, r // 8, r % 8, r // 8)
            for r in range(self.ranks)
        ]

    def step(self, number: int, probed: tuple[int, ...]) -> Step:
        work = self.random.uniform(0.5, 1.5, self.ranks)
        lengths = self._lengths()
        compute = work * self._speed(number) * (1 + 0.5 * (lengths - SHORT) / (LONG - SHORT))
        compute *= np.where(self.stage == self.depth - 1, self.loss, 1.0) * self._noise(self.noise)
        round_seconds = 0.3 * self._speed(number) * self._noise(self.noise / 2)
        probe = np.minimum.reduce([round_seconds + self._paused() for _ in range(5)]) if probed else round_seconds
        probes = {rank: float(probe[rank]) for rank in probed}
        return Step(number, compute + self._paused(), work, lengths if self.lengths else None, probes=probes)

    def _speed(self, number: int) -> Floats:
        drift = 1 + 0.02 * np.sin(number / 100) if self.drift else 1.0
        return self.natural * self.slow * drift * (self.shared if number >= ONSET else 1.0)

    def _lengths(self) -> Floats:
        length = self.random.uniform(SHORT, LONG) if self.long else SHORT
        return np.where(self.replica == self.random.integers(self.replicas), length, float(SHORT))

    def _noise(self, sigma: float) -> Floats:
        return np.exp(self.random.normal(0, sigma, self.ranks))

    def _paused(self) -> Floats:
        hit = self.random.random(self.ranks) < (1 / 300 if self.pauses else 0)
        return np.where(hit, self.random.uniform(0.1, 0.5, self.ranks), 0.0)


class Run:
    """A world and its detector; probes are answered with the next step."""

    def __init__(self, world: World) -> None:
        self.world, self.detector, self.number = world, Detector(world.places), 0
        self.probed: tuple[int, ...] = ()
        self.probes = 0

    def step(self) -> Report:
        report = self.detector.observe(self.world.step(self.number, self.probed))
        self.number += 1
        self.probed = report.probes
        self.probes += len(report.probes)
        return report

    def steps(self, count: int) -> Report:
        for _ in range(count - 1):
            self.step()
        return self.step()


QUIET: dict[str, dict[str, Any]] = {
    "noise alone": {},
    "pauses": {"pauses": True},
    "drift": {"drift": True},
    "long sequences, lengths reported": {"long": True, "lengths": True},
    "long sequences, lengths unknown": {"long": True},
    "whole cluster 1.3": {"shared": 1.3},
    "heavy last stage": {"loss": 1.4},
    "all at once": {"pauses": True, "drift": True, "long": True, "shared": 1.3, "loss": 1.4},
}


def steps_to_confirm(slowdown: float, seed: int, limit: int = 200, **world: Any) -> int | None:
    """Slow steps until one rank is confirmed, the first slow step counted; None: not within the limit."""
    run = Run(World(seed=seed, **world))
    run.steps(ONSET)
    rank = seed * 7 % run.world.ranks
    run.world.slow[rank] = slowdown
    for count in range(1, limit + 1):
        if run.step().states[rank] == State.CONFIRMED:
            return count
    return None


def onset(seeds: int) -> list[dict[str, Any]]:
    """With pauses and drift beside the slow device."""
    found = []
    for slowdown in SLOWDOWNS:
        took = [steps_to_confirm(slowdown, seed, pauses=True, drift=True) for seed in range(seeds)]
        seen = [n for n in took if n is not None]
        p50, p95 = (float(np.quantile(seen, q, method="higher")) if seen else None for q in (0.5, 0.95))
        found.append({"slowdown": slowdown, "runs": seeds, "missed": seeds - len(seen), "p50": p50, "p95": p95})
    return found


def quiet(seeds: int, steps: int) -> list[dict[str, Any]]:
    """Suspicions cost a probe each; confirmations would change the plan."""
    found = []
    for name, options in QUIET.items():
        confirmed = suspected = rank_steps = probes = 0
        for seed in range(seeds):
            run = Run(World(seed=seed, **options))
            before = np.zeros(run.world.ranks)
            for _ in range(steps):
                states = run.step().states
                confirmed += int(((states == State.CONFIRMED) & (before != State.CONFIRMED)).sum())
                suspected += int(((states == State.SUSPECTED) & (before == State.NORMAL)).sum())
                before = states
            rank_steps += steps * run.world.ranks
            probes += run.probes
        million = rank_steps / 1e6
        found.append(
            {
                "set": name, "rank_steps": rank_steps, "confirmed": confirmed,
                "confirmed_per_million": round(confirmed / million, 2),
                "suspected_per_million": round(suspected / million, 1), "probes_per_million": round(probes / million, 1),
            }
        )  # fmt: skip
    return found


def switches(period: int, seed: int, steps: int = 2000) -> int:
    """Changes of the planner's speeds with one device that is 2 x slow for half of each period."""
    run = Run(World(seed=seed))
    run.steps(ONSET)
    found, before = 0, np.ones(run.world.ranks)
    for number in range(steps):
        run.world.slow[3] = 2.0 if number % period < period // 2 else 1.0
        speeds = run.step().speeds
        found += int((speeds != before).any())
        before = speeds
    return found


def flapping(seeds: int) -> list[dict[str, Any]]:
    found = []
    for period in (30, 60, 120):
        counts = [switches(period, seed) for seed in range(max(1, seeds // 10))]
        found.append({"period": period, "steps": 2000, "flaps": 2000 // period, "most_changes": max(counts)})
    return found


def overhead(steps: int = 100) -> dict[str, Any]:
    """CPU time of one thread, at 1,024 ranks, with lengths and a straggler."""
    run = Run(World(replicas=32, depth=8, tensor=4, lengths=True, long=True, pauses=True))
    run.steps(20)
    run.world.slow[5] = 1.5
    took = []
    for number in range(steps):
        step = run.world.step(20 + number, run.probed)
        begin = time.process_time()
        run.probed = run.detector.observe(step).probes
        took.append((time.process_time() - begin) * 1e6)
    return {
        "ranks": run.world.ranks, "steps": steps, "p50_microseconds": round(float(np.median(took))),
        "p99_microseconds": round(float(np.quantile(took, 0.99))),
    }  # fmt: skip


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)
    return rows


def figures(parts: list[str], seeds: int, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "onset" in parts:
        found["onset"] = shown(onset(seeds))
    if "quiet" in parts:
        found["quiet"] = shown(quiet(seeds, steps))
    if "flapping" in parts:
        found["flapping"] = shown(flapping(seeds))
    if "overhead" in parts:
        found["overhead"] = shown([overhead()])[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=800, help="of each world of the false-positive set")
    parser.add_argument("--parts", default="onset,quiet,flapping,overhead")
    parser.add_argument("--output", type=Path, help="write the JSON here")
    args = parser.parse_args()
    text = json.dumps(figures(args.parts.split(","), args.seeds, args.steps))
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
