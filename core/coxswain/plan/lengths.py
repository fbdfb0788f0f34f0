"""Length sets like those of the literature, made from small quantile tables: no download needed."""

from __future__ import annotations

from collections.abc import Callable
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
    if name not in FAMILIES:
        raise Refused("UnknownLengths", f"length set {name!r}: not known; use one of {', '.join(FAMILIES)}")
    family, random = FAMILIES[name], np.random.Generator(np.random.PCG64(seed))
    drawn = np.zeros(0, dtype=np.int64)
    while drawn.sum() < tokens:
        more = family(random, context, drawn.size)
        drawn = np.concatenate([drawn, np.clip(more, 1, context)])
    ends = np.cumsum(drawn)
    last = int(np.searchsorted(ends, tokens))
    drawn[last] -= ends[last] - tokens
    return drawn[: last + 1]


Family = Callable[[np.random.Generator, int, int], NDArray[np.int64]]
"""Draws some lengths, before they are cut to the context; how many were drawn before."""


def _long_tailed(knots: Knots) -> Family:
    return lambda random, context, before: _quantile(knots, random.random(4096))


def _uniform(random: np.random.Generator, context: int, before: int) -> NDArray[np.int64]:
    return random.integers(1, context + 1, size=1024)


def _video(random: np.random.Generator, context: int, before: int) -> NDArray[np.int64]:
    """Clips of some seconds to minutes: log-normal around three eighths of the context."""
    return (context * 3 / 8 * random.lognormal(0, 0.6, size=1024)).astype(np.int64)


def _documents(random: np.random.Generator, context: int, before: int) -> NDArray[np.int64]:
    """Pages and books: log-normal around a hundredth of the context, and one in five around a half of it."""
    sizes = np.where(random.random(1024) < 0.2, context / 2, context / 100)
    return (sizes * random.lognormal(0, 0.5, size=1024)).astype(np.int64)


def _one_huge(random: np.random.Generator, context: int, before: int) -> NDArray[np.int64]:
    """One sequence of the whole context, the others as in the Byted-like set up to a sixty-fourth of it."""
    rest = np.minimum(_quantile(_BYTED, random.random(4096)), max(1, context // 64))
    return rest if before else np.concatenate([[context], rest])


FAMILIES: dict[str, Family] = {
    **{name: _long_tailed(knots) for name, knots in SETS.items()},
    "uniform": _uniform,
    "video": _video,
    "documents": _documents,
    "huge": _one_huge,
}


def _quantile(knots: Knots, u: NDArray[np.float64]) -> NDArray[np.int64]:
    axis = np.log1p(-np.asarray(knots.quantiles))
    return np.exp(np.interp(-np.log1p(-u), -axis, np.log(knots.lengths))).astype(np.int64)
