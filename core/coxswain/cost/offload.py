"""How much of a task's activations can go to host memory and back beside its compute (ByteScale, arXiv 2502.21231, eq. 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost.constants import Constants, Hardware, constants_for, load_hardware
from coxswain.cost.hardware import milliseconds_at
from coxswain.cost.memory import Recompute, Workload, kept_bytes, widths_of
from coxswain.cost.recompute import FORWARD_ATTENTION, FORWARD_LINEAR
from coxswain.models import parameter_specs

_BF16 = 2


def offload_shares(
    hardware: Hardware, model: ModelConfig, rows: int, recompute: Recompute
) -> Callable[[Sequence[int]], float]:
    """The share of a task's activations that goes, by the lengths of its sequences. `rows`: of the vocabulary."""
    one = parameter_specs(replace(model, layers=1), rows)  # its widths are those of all
    kept = kept_bytes(widths_of(model, one, 0, 1), Workload(_BF16, 0, recompute))
    constants, bandwidth = constants_for(hardware, model), hardware.host_gbps * 1e9
    return lambda lengths: offload_ratio(lengths, constants, model.layers, kept, bandwidth)


def least_share(
    model: ModelConfig, parallel: ParallelConfig, rows: int, recompute: Recompute, profile: Hardware | None = None
) -> float:
    """The share of activations that goes to host memory in any task of a job. `profile`: the job's, if it has one.

    It is that of one sequence: by the formula of the shortest, by a table of the one with the least seconds a token. Between two
    points these rise or fall all the way, so it is at a point, or below the first one.
    """
    if parallel.offload == "Off":
        return 0.0
    hardware = profile or load_hardware(parallel.hardware)
    share = offload_shares(hardware, model, rows, recompute)
    return min(share([tokens]) for tokens in (1, *(tokens for tokens, _ in hardware.rates.attention_table)))


def offload_ratio(
    lengths: Sequence[int], constants: Constants, layers: int, kept: int, bytes_per_second: float
) -> float:
    """The largest share, 0 to 1, whose copy takes no longer than a layer's forward: r = min(1, T(s) B / Act(s)).

    `lengths`: whole sequences of the task. `kept`: bytes a token of one layer. Members of a ring and ranks of a tensor
    group divide both sides alike. A bandwidth of 0 means that there is no other memory.
    """
    tokens = sum(lengths)
    linear = FORWARD_LINEAR * constants.linear_us_per_token * 1e-6 * tokens
    seconds = (linear + FORWARD_ATTENTION * _attention_seconds(lengths, constants)) / layers
    return min(1.0, seconds * bytes_per_second / (kept * tokens)) if tokens else 0.0


def _attention_seconds(lengths: Sequence[int], constants: Constants) -> float:
    """Forward and backward, by the table where there is one."""
    if points := constants.tables.attention:
        return sum(milliseconds_at(points, s) for s in lengths) * 1e-3
    return constants.attention_ns_per_token2 * 1e-9 * sum(s * s for s in lengths)
