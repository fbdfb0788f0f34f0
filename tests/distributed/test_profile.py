"""The profile's measurements on real ranks."""

from __future__ import annotations

import pytest
import torch

from coxswain.cost.constants import load_hardware
from coxswain.cost.error import error_of
from coxswain.cost.fit import Measured, Step, fitted, predicted
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.profile.machine import RankMachine
from coxswain_train.profile.measure import measure
from tests.distributed.ranks import run_ranks
from tests.unit.test_profile import MODEL


def profile(world: ProcessGroups) -> tuple[Measured, tuple[Step, ...]]:
    machine = RankMachine(world, MODEL, torch.device("cpu"), torch.float32, MemoryPolicy())
    return measure(machine, MODEL, machine.parameters, 256, 1.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_ranks_measure_the_same_and_their_figures_can_be_fitted(ranks: int) -> None:
    found = run_ranks(ranks, profile)
    assert all(other == found[0] for other in found)
    measured, held_out = found[0]
    assert measured.attention and measured.rings and measured.steps
    assert (measured.gbps > 0) == (ranks > 1) == any(s.ring for s in held_out)
    rates = fitted(measured, load_hardware("cpu").rates, None)
    error = error_of((predicted(s, rates, measured, True), s.seconds) for s in held_out)
    assert error.count == len(held_out) and 0 < error.p50 <= error.p95 < float("inf")
