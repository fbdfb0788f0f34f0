"""Draws steps from a histogram of lengths, for a command that has no mix to read them from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.strategy.values import STEPS

Ints = NDArray[np.int64]


def sampled_steps(lengths: Sequence[int], tokens: int, context: int, steps: int = STEPS) -> list[Ints]:
    """Steps of `tokens` tokens drawn from these lengths, which are cut at `context`. 0 tokens: as many as all lengths have.

    Draws are the same for the same numbers. The last sequence of a step is cut to the sum.
    """
    whole = cut_at(np.asarray(lengths, dtype=np.int64), context)
    wanted = tokens or int(whole.sum())
    return [_drawn(whole, wanted, np.random.Generator(np.random.PCG64(seed))) for seed in range(steps)]


def cut_at(lengths: Ints, context: int) -> Ints:
    """Cuts what is longer than `context` into pieces of it; 0: nothing."""
    if not context or lengths.max(initial=0) <= context:
        return lengths
    pieces = lengths // context
    rests = lengths % context
    return np.concatenate([np.full(int(pieces.sum()), context), rests[rests > 0]])


def _drawn(lengths: Ints, tokens: int, random: np.random.Generator) -> Ints:
    drawn = np.zeros(0, dtype=np.int64)
    while drawn.sum() < tokens:
        more = max(16, int(1.1 * (tokens - drawn.sum()) / lengths.mean()))
        drawn = np.concatenate([drawn, random.choice(lengths, more)])
    ends = np.cumsum(drawn)
    last = int(np.searchsorted(ends, tokens))
    drawn[last] -= ends[last] - tokens
    return drawn[: last + 1]
