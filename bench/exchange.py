"""`python -m bench.exchange OWNERS ...`: what one rank does for a step's gradients and weights, without a network.

A Llama of 32 layers, hidden 256 (291 tensors, 26 million parameters), replicas of one device. Messages arrive at once and
hold nothing, so only packing, sums, the update and unpacking are counted: CPU milliseconds, medians of five.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import Tensor, nn

from coxswain.boxes import full_box
from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.holdings import Holding
from coxswain.models import parameter_specs
from coxswain.shards import shards
from coxswain_train.parallel.grid import Grid
from coxswain_train.parallel.updates import take_step
from coxswain_train.parallel.zero1 import Zero1Optimizer

MODEL = ModelConfig(layers=32, hidden=256, heads=4, kv_heads=4, feed_forward=688)
CONFIG = OptimizerConfig(learning_rate=0.1)


class Silent:
    """A world whose messages hold nothing."""

    def __init__(self, ranks: int) -> None:
        self.grid = Grid(ranks)

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Silent:
        received.zero_()
        return self

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...

    def scalars(self, mine: list[float]) -> list[list[float]]:
        return [mine]


def step_ms(optimizer: Zero1Optimizer, weights: dict[str, nn.Parameter], step: int) -> float:
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    began = time.process_time()
    take_step(optimizer.state, optimizer.reduce(), 1.0, CONFIG, 0.1, step, ())
    optimizer.all_gather()
    return 1000 * (time.process_time() - began)


def main(owners: list[int]) -> None:
    torch.set_num_threads(1)
    specs = parameter_specs(MODEL, 2048)
    weights = {spec.name: nn.Parameter(torch.zeros(spec.shape)) for spec in specs}
    whole = tuple(Holding(full_box(spec.name, spec.shape)) for spec in specs)
    for ranks in owners:
        began = time.process_time()
        optimizer = Zero1Optimizer(weights, shards([whole] * ranks), ranks - 1, Silent(ranks))
        made = time.process_time() - began
        median = statistics.median(step_ms(optimizer, weights, step) for step in range(5))
        print(f"{ranks} owners, {len(weights)} tensors: {median:.0f} CPU ms a step, plans made in {made:.2f} CPU s")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [8, 64, 256, 1024])
