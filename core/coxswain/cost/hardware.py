"""What a file says of a machine, and what follows from it for one model: seconds from FLOPs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import log
from typing import Annotated, Literal

import msgspec

from coxswain.config import ModelConfig
from coxswain.structs import prepare

Point = tuple[Annotated[int, msgspec.Meta(le=10**12)], float]
"""Tokens, and milliseconds or TFLOP/s."""


class Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Milliseconds of attention, forward and backward together, by tokens; an empty table: the formula holds.

    `attention`: causal, of a whole sequence. `ring`: one step of a ring, by the tokens of one of its members.
    """

    attention: tuple[Point, ...] = ()
    ring: tuple[Point, ...] = ()


def faults(points: Iterable[Point]) -> str:
    """Says what is wrong with a table; empty: nothing."""
    tokens, values = tuple(zip(*points, strict=True)) or ((), ())
    if any(not 0 < value < float("inf") for value in (*tokens, *values)):
        return "its numbers must be finite and above 0"
    if any(b <= a for column in (tokens, values) for a, b in pairwise(column)):
        return "tokens and times must rise from point to point"
    return ""


def milliseconds_at(points: Sequence[Point], tokens: float) -> float:
    """Of one length, as `tables.Curve` interpolates: without numpy, which the operator does not import."""
    at = bisect_left(points, (tokens,))
    (first, least), (last, most) = points[0], points[-1]
    if at == 0:
        return least * tokens / first
    if at == len(points):
        return most * (tokens / last) ** 2
    (before, low), (after, high) = points[at - 1], points[at]
    return float(low * (high / low) ** (log(tokens / before) / log(after / before)))


class Constants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model on one machine, forward and backward together; bandwidths in GB/s."""

    linear_us_per_token: float
    attention_ns_per_token2: float
    kv_bytes_per_token: float
    inside_node_gbps: float
    between_nodes_gbps: float
    task_ms: float
    tables: Tables = Tables()


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a machine sustains with any model.

    The tables hold TFLOP/s by tokens: `attention_table` of a whole causal sequence, `ring_table` of one step of a ring, by
    the tokens of a member. An empty one: attention_tflops at any length.
    """

    linear_tflops: float
    attention_tflops: float
    kv_element_bytes: Literal[2, 4]
    inside_node_gbps: float
    between_nodes_gbps: float
    task_ms: float
    update_ns_per_parameter: float = 0.0  # of a step, besides its tasks and what it sends: sums and the optimizer
    attention_table: tuple[Point, ...] = ()
    ring_table: tuple[Point, ...] = ()


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constants file: rates for any model's shape, and measured constants of known models.

    `peak_tflops`: what a device could do at most, by its maker; 0: unknown, so no utilisation is shown.
    """

    rates: Rates
    peak_tflops: float = 0.0
    models: dict[str, Constants] = {}
    memory_gib: float = 0.0  # of a device; 0: that of the machine, which is not judged
    host_gbps: float = 0.0  # between a device and its host, one way; 0: they share their memory
    note: str = ""


def linear_flops(model: ModelConfig) -> float:
    """FLOPs a token, forward and backward: backward is 2 x forward in matrix products."""
    query, kv = model.heads * model.size_of_head, model.kv_heads * model.size_of_head
    layer = model.hidden * (2 * query + 2 * kv) + 3 * model.hidden * model.feed_forward
    return 3 * 2 * (model.layers * layer + model.hidden * model.vocabulary)


def attention_flops(model: ModelConfig) -> float:
    """FLOPs a token squared of causal attention, forward and backward: backward is 2.5 x forward."""
    return 3.5 * 2 * model.heads * model.size_of_head * model.layers


def scaled(rates: Rates, model: ModelConfig) -> Constants:
    """Turns FLOPs into times."""
    kv = model.kv_heads * model.size_of_head
    return Constants(
        linear_us_per_token=linear_flops(model) / rates.linear_tflops * 1e-6,
        attention_ns_per_token2=attention_flops(model) / rates.attention_tflops * 1e-3,
        kv_bytes_per_token=3
        * model.layers
        * 2
        * kv
        * rates.kv_element_bytes,  # K and V forward, again backward, and their gradients
        inside_node_gbps=rates.inside_node_gbps,
        between_nodes_gbps=rates.between_nodes_gbps,
        task_ms=rates.task_ms,
        tables=Tables(
            attention=_milliseconds(rates.attention_table, model), ring=_milliseconds(rates.ring_table, model)
        ),
    )


def _milliseconds(table: tuple[Point, ...], model: ModelConfig) -> tuple[Point, ...]:
    return tuple((tokens, attention_flops(model) * tokens**2 / tflops * 1e-9) for tokens, tflops in table)


def step_seconds(rates: Rates, parameters: int, replicas: int, inside_node: bool) -> float:
    """Seconds of a step besides its tasks: gradients to their owners, weights back, sums and the optimizer."""
    gbps = rates.inside_node_gbps if inside_node else rates.between_nodes_gbps
    sent = (4 + rates.kv_element_bytes) * parameters * (replicas - 1) / replicas
    return sent / (gbps * 1e9) + rates.update_ns_per_parameter * parameters * 1e-9


prepare(__name__)
