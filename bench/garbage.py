"""What watching costs a step of one rank, side by side in one run: measuring it, and Python's collector.

One thread trains a small model. One engine takes each step twice, in turns: with its clock, and with one that reads nothing. What
measuring adds is the median of the differences within these pairs, of the processor's clock. Two engines would differ by more
than that: each has its own places in memory. Then blocks of steps take turns:
with the collector running at any time, and between steps alone, where a collection counts to the step before it.
`python -m bench.garbage [--steps 1000] [--hidden 256]`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from coxswain.config import ModelConfig
from coxswain_link import garbage
from coxswain_train.engine.engine import Engine
from coxswain_train.parallel.clock import DeviceClock
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads

STREAM = Stream(lengths=(40, 3, 29, 7, 16), vocabulary=training.VOCABULARY)
BLOCK = 100  # steps
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class SwitchedClock(DeviceClock):
    """Reads nothing while it is off."""

    on = True

    def mark(self) -> float:
        return super().mark() if self.on else 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        with super().waiting() if self.on else nullcontext():
            yield


def engine_of(world: ThreadWorld, hidden: int, steps: int) -> Engine:
    model = ModelConfig(layers=4, hidden=hidden, heads=4, kv_heads=2, feed_forward=3 * hidden)
    engine = training.engine_of(world, torch.float32, model, steps=steps)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    return engine


def take(engine: Engine, step: int, clock: Callable[[], float]) -> float:
    work, began = training.work_of(STREAM, step, random_plan(STREAM.lengths, 1, step), 0), clock()
    engine.step(work, time.perf_counter())
    return clock() - began


def measured(world: ThreadWorld, steps: int, hidden: int) -> list[tuple[float, float]]:
    """Processor seconds of each step with the clock and without."""
    clock = world.clock = SwitchedClock()
    engine, found = engine_of(world, hidden, 2 * steps), []
    garbage.collect_between_steps_alone()
    for step in range(steps):
        pair = {}
        for clock.on in (True, False) if step % 2 else (False, True):
            pair[clock.on] = take(engine, step, time.thread_time)
            garbage.between_steps(step)
        found.append((pair[True], pair[False]))
    garbage.collect_at_any_time()
    return found


def collected(world: ThreadWorld, steps: int, hidden: int) -> list[tuple[bool, float, float]]:
    """Of each step: whether garbage is collected between steps alone; its seconds, and those of the collection behind it."""
    engine, found = engine_of(world, hidden, 2 * steps), []
    for step in range(2 * steps):
        between = step // BLOCK % 2 == 1
        if step % BLOCK == 0:
            gc.collect()
            (garbage.collect_between_steps_alone if between else garbage.collect_at_any_time)()
        seconds, computed = take(engine, step, time.perf_counter), time.perf_counter()
        garbage.between_steps(step)
        found.append((between, seconds, time.perf_counter() - computed))
    garbage.collect_at_any_time()
    return found


def figures(pairs: Floats, steps: Floats) -> dict[str, dict[str, float]]:
    """`pairs`: rows of `measured`; `steps`: rows of `collected`. The first ones warm up."""
    with_clock, without = pairs[20:].T
    added = float(np.median(with_clock - without) / np.median(without))
    found = {"measuring": {"step ms, p50": _ms(without, 50), "adds %": round(100 * added, 3)}}
    for name, between in (("at any time", 0.0), ("between steps", 1.0)):
        mine = steps[20:][steps[20:, 0] == between]
        found[name] = {f"step ms, p{p}": _ms(mine[:, 1], p) for p in (50, 99, 99.9)}
        found[name] |= {"collection ms, mean": _ms(mine[:, 2]), "collection ms, longest": _ms(mine[:, 2], 100)}
    return found


def _ms(seconds: Floats, percentile: float | None = None) -> float:
    chosen = seconds.mean() if percentile is None else np.percentile(seconds, percentile)
    return round(float(chosen) * 1000, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    garbage.leave_out_what_exists()  # as the fork server does
    pairs, steps = (run_threads(1, part, options.steps, options.hidden)[0] for part in (measured, collected))
    result = figures(np.array(pairs), np.array(steps, dtype=float))
    print(json.dumps({"bench": "garbage", "options": vars(options), **result}))


if __name__ == "__main__":
    main()
