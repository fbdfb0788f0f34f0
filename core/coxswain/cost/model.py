"""The cost model of every planner, bound and simulator: seconds of packs and rings at speed 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coxswain.cost.constants import Constants
from coxswain.cost.tables import Curve, curve
from coxswain.cost.ulysses import HeadExchange

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times of tasks. Numbers may be arrays wherever the annotation says `Number`.

    Where the constants have measured tables, attention and ring steps take their seconds from these.
    """

    constants: Constants
    exchange: HeadExchange | None = None
    """How rings exchange heads; None: they do not."""
    _whole: Curve | None = field(init=False, repr=False, compare=False)
    _step: Curve | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tables = self.constants.tables
        object.__setattr__(self, "_whole", curve(tables.attention))
        object.__setattr__(self, "_step", curve(tables.ring or tables.attention))

    @property
    def linear(self) -> float:
        """Seconds per token."""
        return self.constants.linear_us_per_token * 1e-6

    @property
    def attention(self) -> float:
        """Seconds per token squared, of causal attention of a whole sequence."""
        return self.constants.attention_ns_per_token2 * 1e-9

    @property
    def task(self) -> float:
        """Seconds that every task costs besides its sequences."""
        return self.constants.task_ms * 1e-3

    def kv(self, inside_node: bool) -> float:
        """Seconds to send the keys and values of one token, forward and backward."""
        gbps = self.constants.inside_node_gbps if inside_node else self.constants.between_nodes_gbps
        return self.constants.kv_bytes_per_token / (gbps * 1e9)

    def work_seconds(self, lengths: ArrayLike) -> Floats:
        """Returns the compute of each sequence, without the cost of its task."""
        s = np.asarray(lengths, dtype=np.float64)
        return self.linear * s + self.attention_seconds(s)

    def least_work_seconds(self, lengths: ArrayLike) -> Floats:
        """Returns what each sequence takes of all its replicas together, in whichever task: bounds may add these up.

        By the formula a ring attends as long as a pack. By tables its steps may be faster than a whole sequence.
        """
        s = np.asarray(lengths, dtype=np.float64)
        if self._step is None:
            return self.work_seconds(s)
        return self.linear * s + np.minimum(self.attention_seconds(s), s * s * self._step.least_per_square(s / 2))

    def attention_seconds(self, lengths: ArrayLike) -> Floats:
        """Of whole sequences, by the table where there is one."""
        s = np.asarray(lengths, dtype=np.float64)
        return self.attention * s * s if self._whole is None else self._whole.seconds(s)

    def _step_attention(self, tokens: Number) -> Number:
        """Seconds of one step of a ring, by the tokens of a member."""
        if self._step is None:
            return self.attention * tokens * tokens
        seconds: Number = self._step.seconds(tokens)  # type: ignore[assignment]
        return seconds

    def pack_seconds(self, lengths: ArrayLike) -> float:
        """Returns the seconds of one pack of these sequences."""
        return self.task + float(self.work_seconds(lengths).sum())

    def ring_seconds(self, s: Number, degree: Number, inside_node: bool) -> Number:
        """Returns the seconds of one sequence over `degree` members.

        Each of the D ring steps computes on one block while the next one travels. Where rings exchange heads: of those groups
        that `exchange` allows, on the links inside a node where a node may hold them.
        """
        found = self._ring(s, degree, inside_node, 1, inside_node)
        if self.exchange is None:
            return found
        for size in self.exchange.sizes[1:]:
            groups_inside = inside_node or size <= self.exchange.node
            seconds = self._ring(s, degree, inside_node, size, groups_inside)
            better = np.equal(np.mod(degree, size), 0)
            if self.exchange.choice == "Auto":
                better = better & np.less(seconds, found)
            found = np.where(better, seconds, found)  # type: ignore[assignment]
        return found

    def _ring(self, s: Number, degree: Number, inside_node: bool, size: int, groups_inside: bool) -> Number:
        """As `ring_seconds`, with head groups of this size."""
        compute = self._step_attention(s * size / degree) / size
        if self._step is not None:  # a ring of one group attends as a pack does
            alone = self.attention_seconds(np.asarray(s)) / size
            compute = np.where(np.equal(degree, size), alone, compute)  # type: ignore[assignment]
        travel = self.kv(inside_node) * s / degree
        slower: Number = np.maximum(compute, travel)
        seconds: Number = self.task + self.linear * s / degree + compute + (degree / size - 1) * slower
        return seconds if size == 1 else seconds + self.exchanged(size, groups_inside) * s / degree

    def exchanged(self, size: int, inside_node: bool) -> float:
        """Seconds a token of a member to exchange heads in a group of this size, forward and backward."""
        if self.exchange is None:
            return 0.0
        return self.kv(inside_node) * self.exchange.per_key_byte * (size - 1) / size

    def packed_ring_seconds(
        self, lengths: ArrayLike, degree: int, inside_node: bool, size: int = 1, groups_inside: bool = False
    ) -> float:
        """Returns the seconds of several sequences in one ring, as in a static mesh: steps add up.

        `size`: of its head groups, each within a node if `groups_inside`.
        """
        s = np.asarray(lengths, dtype=np.float64) / degree
        tokens = float(s.sum())
        if self._step is None:
            compute = self.attention * float((s * s).sum()) * size
        elif size == degree > 1:
            compute = float(self.attention_seconds(s * degree).sum()) / size
        else:
            compute = float(self._step.seconds(s * size).sum()) / size
        travel = self.kv(inside_node) * tokens
        ring = compute + (degree // size - 1) * max(compute, travel)
        return self.task + self.linear * tokens + ring + self.exchanged(size, groups_inside) * tokens

    def lower_bound(
        self, lengths: ArrayLike, speeds: Sequence[float] | Floats, capacity: int, max_degree: int, node_size: int
    ) -> float:
        """Returns a time before which no plan ends.

        All work over all speeds, or the longest sequence on the fastest replicas.
        """
        s = np.asarray(lengths, dtype=np.float64)
        if not s.size:
            return 0.0
        packs = -(-int(s.sum()) // capacity)
        spread = (float(self.least_work_seconds(s).sum()) + self.task * packs) / float(np.sum(speeds))
        return max(spread, self._longest(float(s.max()), speeds, capacity, max_degree, node_size))

    def _longest(
        self, s: float, speeds: Sequence[float] | Floats, capacity: int, max_degree: int, node_size: int
    ) -> float:
        fastest = np.sort(np.asarray(speeds, dtype=np.float64))[::-1][:max_degree]
        degree = np.arange(1, fastest.size + 1, dtype=np.float64)
        inside = self.ring_seconds(np.full_like(degree, s), degree, True)
        between = self.ring_seconds(np.full_like(degree, s), degree, False)
        seconds = np.where(degree <= node_size, inside, between) / fastest
        return float(seconds[max(0, -(-int(s) // capacity) - 1) :].min(initial=np.inf))
