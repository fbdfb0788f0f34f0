"""How much of a task's activations can go to host memory and back beside its compute (ByteScale, arXiv 2502.21231, eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from coxswain.cost.constants import Constants

# Of forward and backward together, what forward takes: backward is 2 x in matrix products, 2.5 x in attention.
_LINEAR, _ATTENTION = 1 / 3, 1 / 3.5


def offload_ratio(
    lengths: Sequence[int], constants: Constants, layers: int, kept: int, bytes_per_second: float
) -> float:
    """The largest share, 0 to 1, whose copy takes no longer than a layer's forward: r = min(1, T(s) B / Act(s)).

    `lengths`: whole sequences of the task. `kept`: bytes a token of one layer. Members of a ring and ranks of a tensor
    group divide both sides alike. A bandwidth of 0 means that there is no other memory.
    """
    tokens, squares = sum(lengths), sum(s * s for s in lengths)
    linear = _LINEAR * constants.linear_us_per_token * 1e-6 * tokens
    seconds = (linear + _ATTENTION * constants.attention_ns_per_token2 * 1e-9 * squares) / layers
    return min(1.0, seconds * bytes_per_second / (kept * tokens)) if tokens else 0.0
