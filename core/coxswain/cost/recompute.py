"""What recompute repeats in backward: compute, the hops of rings, and exchanges of heads (see docs/design/memory.md)."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.cost.hardware import Constants, Point, Tables
from coxswain.cost.memory import Recompute

FORWARD_LINEAR, FORWARD_ATTENTION = 1 / 3, 1 / 3.5
"""Of forward and backward together, what forward takes: backward is 2 x in matrix products, 2.5 x in attention."""


def passes(recompute: Recompute) -> int:
    """How often keys and values, or their gradients, go round a ring: in forward, in backward, gradients; repeated forward."""
    return 3 + (recompute == "Full")


def exchanges(recompute: Recompute) -> int:
    """How often heads are exchanged, before attention and behind it: forward, backward; either kind repeats that of forward."""
    return 2 + (recompute != "None")


def repeated(constants: Constants, recompute: Recompute) -> Constants:
    """The constants of a job that recomputes; without it the same. `Selective` repeats neither attention nor hops."""
    if recompute == "None":
        return constants
    attention = 1 + (recompute == "Full") * FORWARD_ATTENTION
    return replace(
        constants,
        linear_us_per_token=constants.linear_us_per_token * (1 + FORWARD_LINEAR),
        attention_ns_per_token2=constants.attention_ns_per_token2 * attention,
        kv_bytes_per_token=constants.kv_bytes_per_token * passes(recompute) / passes("None"),
        tables=times(constants.tables, attention),
    )


def times(tables: Tables, factor: float) -> Tables:
    """Tables of so many times the seconds."""
    return Tables(attention=_times(tables.attention, factor), ring=_times(tables.ring, factor))


def _times(points: tuple[Point, ...], factor: float) -> tuple[Point, ...]:
    return tuple((tokens, seconds * factor) for tokens, seconds in points)
