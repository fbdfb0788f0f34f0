"""Tensor parallelism (Shoeybi et al., arXiv 1909.08053, section 3): what the ranks of one group compute together.

Activations are whole on every rank of the group. A pair of matrices is cut by columns, then by rows: its input passes
`enter`, its output `leave`, so that forward and backward have one sum each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class TensorGroup(Protocol):
    """The ranks that share the matrices of a stage, as one of them sees it."""

    @property
    def index(self) -> int: ...

    @property
    def degree(self) -> int: ...

    def sum(self, x: Tensor) -> None:
        """Replaces the contiguous `x` by its sum over the group, the same bits on every rank."""
        ...

    def maximum(self, x: Tensor) -> None:
        """Replaces the contiguous `x` by its largest values over the group."""
        ...


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The part of a model that one rank has: layers [start, stop) of `layers`, shared with `group`; None: not shared."""

    start: int
    stop: int
    layers: int
    group: TensorGroup | None = None

    @property
    def first(self) -> bool:
        return self.start == 0

    @property
    def last(self) -> bool:
        return self.stop == self.layers

    @property
    def degree(self) -> int:
        return 1 if self.group is None else self.group.degree

    @property
    def index(self) -> int:
        return 0 if self.group is None else self.group.index


def enter(x: Tensor, group: TensorGroup | None) -> Tensor:
    """The input of matrices that are cut by columns: identity forward, the sum over the group backward."""
    return x if group is None else _Enter.apply(x, group)


def leave(x: Tensor, group: TensorGroup | None) -> Tensor:
    """The output of a matrix that is cut by rows: the sum over the group forward (in place), identity backward."""
    return x if group is None else _Leave.apply(x, group)


def embed(tokens: Tensor, weight: Tensor, group: TensorGroup | None) -> Tensor:
    """Rows of an embedding whose vocabulary the group shares; `weight` holds this rank's ids."""
    if group is None:
        return functional.embedding(tokens, weight)
    local = tokens - group.index * len(weight)
    elsewhere = (local < 0) | (local >= len(weight))
    rows = functional.embedding(local.masked_fill(elsewhere, 0), weight)
    return leave(rows.masked_fill(elsewhere.unsqueeze(1), 0.0), group)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        ctx.group.sum(total)
        return total, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.mark_dirty(x)
        group.sum(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
