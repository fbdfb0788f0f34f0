"""Length sets like those of the literature, made from small quantile tables: no download needed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused


class Knots(NamedTuple):
    """Quantiles and their lengths.

    Between knots log(length) is linear in log(1 - quantile), as in a Pareto tail.
    """

    quantiles: tuple[float, ...]
    lengths: tuple[int, ...]


# Quantiles of the file of a million Wikipedia lengths that FlexSP publishes with its code.
_WIKIPEDIA = Knots(
    (0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1 - 1e-6),
    (16, 67, 146, 347, 862, 2112, 3721, 10921, 37367, 102060, 1823777),
)
# ByteScale publishes the token shares of length bins of its two sets; these quantiles give them.
_BYTED = Knots(
    (0, 0.05, 0.25, 0.5, 0.8, 0.885, 0.935, 0.965, 0.9825, 0.9925, 0.9961, 0.99795, 0.99885, 0.9995),
    (32, 100, 420, 1200, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152),
)
_GITHUB = Knots(
    (
        0,
        0.05,
        0.2,
        0.4,
        0.72,
        0.925,
        0.975,
        0.99,
        0.9955,
        0.9977,
        1 - 1.32e-3,
        1 - 4.6e-4,
        1 - 1.5e-4,
        1 - 3.5e-5,
        1 - 5e-6,
    ),
    (32, 300, 750, 1200, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152),
)
SETS = {"wikipedia": _WIKIPEDIA, "github": _GITHUB, "byted": _BYTED}


def draw_lengths(name: str, *, context: int, tokens: int, seed: int) -> NDArray[np.int64]:
    """Draws a step of exactly `tokens` tokens in random order.

    Sequences beyond the context are cut to it, the last one to the sum.
    """
    if name not in SETS:
        raise Refused("UnknownLengths", f"length set {name!r}: not known; use one of {', '.join(SETS)}")
    knots, random = SETS[name], np.random.Generator(np.random.PCG64(seed))
    drawn = np.zeros(0, dtype=np.int64)
    while drawn.sum() < tokens:
        drawn = np.concatenate([drawn, np.minimum(_quantile(knots, random.random(4096)), context)])
    ends = np.cumsum(drawn)
    last = int(np.searchsorted(ends, tokens))
    drawn[last] -= ends[last] - tokens
    return drawn[: last + 1]


def _quantile(knots: Knots, u: NDArray[np.float64]) -> NDArray[np.int64]:
    axis = np.log1p(-np.asarray(knots.quantiles))
    return np.exp(np.interp(-np.log1p(-u), -axis, np.log(knots.lengths))).astype(np.int64)
