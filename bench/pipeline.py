"""Two stages beside one replica on the same tokens: what the pipeline gains, and its bubble beside the ideal one.

In turns, several rounds of `cox run`: one replica of one device, and one of two stages of a device each. A step has PACKS
equal packs, so the ideal bubble is 1 / (PACKS + 1) of the time (Narayanan et al., arXiv 2104.04473, section 2.2); the rest
of the idle time comes from stages of unequal work, messages and the reduction. `python -m bench.pipeline [--rounds 3]`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.engine import TOKENS_PER_STEP, measure, objects, write_corpus

PACKS = 8
STAGES = [
    {"layers": 3},
    {"layers": 1},
]  # the head of the vocabulary weighs as much as the layers that it spares its stage


def job_of(folder: Path, stages: int) -> list[dict[str, Any]]:
    """The job of bench.engine with packs of an eighth of its step, on one device or two stages."""
    found = objects(folder, 1)
    spec = found[-1]["spec"]
    spec["batch"]["maxSequenceTokens"] = spec["parallelism"]["hybridData"]["tokensPerReplica"] = (
        TOKENS_PER_STEP // PACKS
    )
    if stages > 1:
        spec["trainers"]["devicesPerTrainer"] = stages
        spec["parallelism"]["layout"] = {"replicas": [{"stages": STAGES}]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="measured, of each run")
    options = parser.parse_args()
    gains, busy = [], []
    with tempfile.TemporaryDirectory(prefix="coxswain-pipeline-") as name:
        folder = Path(name)
        write_corpus(folder / "corpus")
        for _ in range(options.rounds):
            one, two = (measure(folder, 1, options.steps, job_of(folder, stages)) for stages in (1, len(STAGES)))
            gains.append(two.tokens_per_second / one.tokens_per_second)
            busy.append(two.compute_share)
    ideal = (len(STAGES) - 1) / (PACKS + len(STAGES) - 1)
    found = {"two stages over one replica": gains, "compute share of two stages": busy, "ideal bubble": ideal}
    print(json.dumps({"bench": "pipeline", **found}))
    print(
        f"two stages: {median(gains):.2f} x one replica (at most {2 * (1 - ideal):.2f}); idle "
        f"{1 - median(busy):.1%} of the ranks' time, ideal bubble {ideal:.1%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
