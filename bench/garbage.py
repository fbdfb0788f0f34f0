"""Step times of one rank with Python's collector running at any time, and between steps alone: p50, p99 and the longest.

One thread trains a small model; collections between steps count to the step before them. `python -m bench.garbage`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

import numpy as np
import torch

from coxswain_link import garbage
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads

STREAM = Stream(lengths=(40, 3, 29, 7, 16), vocabulary=training.VOCABULARY)


def seconds(world: ThreadWorld, steps: int, between: bool) -> list[float]:
    """Of each step, and of the rest of its turn."""
    engine, found = training.engine_of(world, torch.float32, steps=steps), []  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    gc.collect()
    if between:
        garbage.collect_between_steps_alone()
    for step in range(steps):
        work, began = training.work_of(STREAM, step, random_plan(STREAM.lengths, 1, step), 0), time.perf_counter()
        engine.step(work, began)
        computed = time.perf_counter()
        garbage.between_steps(step)
        found.append([computed - began, time.perf_counter() - computed])
    garbage.collect_at_any_time()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, dict[str, float]] = {}
    for name, between in (("at any time", False), ("between steps", True)):
        taken = np.array(run_threads(1, seconds, options.steps, between)[0][20:]) * 1000
        result[name] = {f"step ms, p{p}": round(float(np.percentile(taken[:, 0], p)), 3) for p in (50, 99, 99.9)}
        result[name]["collection ms, mean"] = round(float(taken[:, 1].mean()), 3)
        result[name]["collection ms, longest"] = round(float(taken[:, 1].max()), 3)
    print(json.dumps({"bench": "garbage", "options": vars(options), **result}))


if __name__ == "__main__":
    main()
