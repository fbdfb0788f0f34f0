"""Made-up state of a worker between two layouts."""

from __future__ import annotations

import torch

from coxswain.boxes import Box
from coxswain_train.live.state import PendingStep
from coxswain_train.parallel.state import KINDS, State
from coxswain_train.parallel.zero1 import GlobalStats

CPU = torch.device("cpu")
MOST = (1 << 64) - 1


def state_of(fill: float = 0.0) -> State:
    state = State()
    state.hold([Box("a", (0, 0), (2, 3))], torch.float32, CPU)
    for kind in KINDS:
        state.values(kind)[0].fill_(fill)
    return state


def pending(step: int, agreed: GlobalStats | None = None) -> PendingStep:
    return PendingStep(step, torch.ones(6), None, 1.5, agreed)


STATS = GlobalStats(7.0, 2.5)
