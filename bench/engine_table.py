"""The figures of bench/engine.py, as one JSON object and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

TARGETS = {"one over plain": 0.95, "two over one": 1.6, "hand-over p99 seconds": 0.002}


@dataclass(frozen=True)
class System:
    """One `cox run`, from the end of step WARM - 1 to the end of the last measured step."""

    replicas: int
    tokens_per_second: float
    step_seconds: float  # median
    cpu_per_1000: dict[str, float]  # tokens; by service
    handover: list[float]  # seconds that each rank waited for each step's data
    reduce_share: float  # of the ranks' time in steps: reduction and optimizer
    compute_share: float
    first_loss: float


def check_same(plains: Sequence[dict[str, Any]], systems: Sequence[System]) -> None:
    """Both sides began with the same model on the same tokens, else nothing is comparable."""
    losses = [*(p["first_loss"] for p in plains), *(s.first_loss for s in systems)]
    if max(losses) > min(losses) * (1 + 1e-4):
        raise RuntimeError(f"losses of step 0 differ: {losses}")


def summary(plains: Sequence[dict[str, Any]], ones: Sequence[System], twos: Sequence[System]) -> dict[str, Any]:
    """Medians, and ratios of what was measured in the same round."""

    def rate(runs: Sequence[System]) -> list[float]:
        return [run.tokens_per_second for run in runs]

    plain_rate = [p["tokens_per_second"] for p in plains]
    waits = [wait for run in ones for wait in run.handover]
    worker = [run.cpu_per_1000["worker"] for run in ones]
    return {
        "plain tokens/s": median(plain_rate),
        "one replica tokens/s": median(rate(ones)),
        "two replicas tokens/s": median(rate(twos)),
        "one over plain": median(a / b for a, b in zip(rate(ones), plain_rate, strict=True)),
        "two over one": median(a / b for a, b in zip(rate(twos), rate(ones), strict=True)),
        "hand-over p99 seconds": float(np.percentile(waits, 99)),
        "hand-over median seconds": median(waits),
        "step seconds": {"one": median(r.step_seconds for r in ones), "two": median(r.step_seconds for r in twos)},
        "reduction and optimizer share": {
            "one": median(r.reduce_share for r in ones), "two": median(r.reduce_share for r in twos),
        },
        "compute share": {"one": median(r.compute_share for r in ones), "two": median(r.compute_share for r in twos)},
        "plain CPU over worker CPU": median(p["cpu_per_1000"] / w for p, w in zip(plains, worker, strict=True)),
        "plain": sorted({p["ways"] for p in plains}),
        "targets": TARGETS,
    }  # fmt: skip


def spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def figures(plains: Sequence[dict[str, Any]], ones: Sequence[System], twos: Sequence[System]) -> dict[str, str]:
    """What docs/results keeps."""
    found, wait = summary(plains, ones, twos), "hand-over p99, ms"
    rates = {"plain": [p["tokens_per_second"] for p in plains]}
    rates |= {
        name: [r.tokens_per_second for r in runs] for name, runs in (("one replica", ones), ("two replicas", twos))
    }
    return {
        **{f"{name} tokens/s": spread(rate) for name, rate in rates.items()},
        "one over plain": f"{found['one over plain']:.3f}",
        "one over plain, target": f"{TARGETS['one over plain']:.2f}",
        "two over one": f"{found['two over one']:.2f}",
        "two over one, target": f"{TARGETS['two over one']:g}",
        wait: f"{1000 * found['hand-over p99 seconds']:.2f}",
        f"{wait}, target": f"{1000 * TARGETS['hand-over p99 seconds']:g}",
    }


def print_results(plains: Sequence[dict[str, Any]], ones: Sequence[System], twos: Sequence[System]) -> None:
    found = summary(plains, ones, twos)
    runs = {
        "one": [asdict(r) | {"handover": None} for r in ones],
        "two": [asdict(r) | {"handover": None} for r in twos],
    }
    print(json.dumps(found | {"rounds": {"plain": list(plains), **runs}}))
    print(f"plain loop: {spread([p['tokens_per_second'] for p in plains])} tokens/s, {', '.join(found['plain'])}")
    for name, systems in (("one replica", ones), ("two replicas", twos)):
        key = name.split()[0]
        cpu = {s: median(r.cpu_per_1000.get(s, 0.0) for r in systems) for s in systems[0].cpu_per_1000}
        print(
            f"{name}: {spread([r.tokens_per_second for r in systems])} tokens/s, a step {found['step seconds'][key]:.3f} s, "
            f"reduction and optimizer {found['reduction and optimizer share'][key]:.1%}; CPU s per 1,000 tokens: "
            + ", ".join(f"{s} {c:.3f}" for s, c in cpu.items())
        )
    print(
        f"one over plain {found['one over plain']:.3f} (target {TARGETS['one over plain']}; by CPU "
        f"{found['plain CPU over worker CPU']:.3f}), two over one {found['two over one']:.2f} "
        f"(target {TARGETS['two over one']}), hand-over p99 {1000 * found['hand-over p99 seconds']:.2f} ms "
        f"(target 2 ms, median {1000 * found['hand-over median seconds']:.2f} ms)"
    )
