"""Attention on one device: the kernel with its log-sum-exp, and packs of several causal sequences.

A `Kernel` is the attention of one task; `TaskAttention` makes it differentiable. Recompute keeps a kernel's results
(`Kept`) and repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from coxswain.errors import Refused

Gradients = tuple[Tensor, Tensor, Tensor]

aten = torch.ops.aten
"""Where the kernels are. Packs and rings call no other."""


class Kernel(Protocol):
    """Attention of a task on one of its devices, in shapes of `AttentionFn`. Log-sum-exp: [heads, tokens], contiguous."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        ...

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        """Gradients of query, key and value."""
        ...


class Heads(Protocol):
    """How members of a ring exchange heads for tokens before attention and after it; both are differentiable."""

    def spread(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """More tokens of fewer heads."""
        ...

    def collect(self, out: Tensor) -> Tensor:
        """Own tokens of all heads."""
        ...


@dataclass(frozen=True, slots=True)
class TaskAttention:
    """An `AttentionFn`: a kernel with its backward. `heads`: what is exchanged around it; None: nothing."""

    kernel: Kernel
    heads: Heads | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Refuses what a layer of the user's own may give: kernels would read and write beyond the tensors."""
        _check_shapes(query, key, value)
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        if self.heads is None:
            return self._attend(query, key, value)
        return self.heads.collect(self._attend(*self.heads.spread(query, key, value)))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _Attention.apply(query, key, value, self.kernel)  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel) -> Tensor:
        out, lse = kernel.forward(query, key, value)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *ctx.kernel.backward(grads[0], *ctx.saved_tensors), None


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    fits = query.dim() == 3 and key.shape == value.shape and query.shape[1:] == key.shape[1:]
    if not fits or not len(key) or len(query) % len(key):
        raise Refused(
            "BadModel",
            f"attend: query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}; give [heads, tokens, size], "
            "key and value with as many heads, which divide the query's, and all with the same tokens and size",
        )


def forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Output [heads, n, size] and log-sum-exp [heads, n]: queries [heads, n, size], keys and values [kv heads, m, size].

    `causal` needs n == m. Flash attention (Dao, arXiv 2307.08691), which on CPU also does fp64.
    """
    _check_rows(query, key, value)
    q, k, v = query[None], key[None], value[None]
    if on_cuda(query):
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out[0], lse[0].contiguous()


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> Gradients:
    """Gradients of query, key and value. `out` and `lse` may be over more keys: then the part of these keys."""
    _check_rows(query, key, value)
    _check_lse(lse)
    g, q, k, v, o, s = (x[None] for x in (gradient, query, key, value, out, lse))
    if on_cuda(query):
        grads = aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, o, s, None, None, q.shape[2], k.shape[2], 0.0, causal, *_random_state(query)
        )
    else:
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, s, 0.0, causal)
    return grads[0][0], grads[1][0], grads[2][0]


def on_cuda(x: Tensor) -> bool:
    """Whether CUDA's kernels compute it: those of `aten` take other arguments there."""
    return x.is_cuda


def _random_state(x: Tensor) -> tuple[Tensor, Tensor]:
    """What the CUDA kernels take for dropout: unused, there is none."""
    return torch.zeros(2, dtype=torch.uint64, device=x.device), torch.zeros((), dtype=torch.uint64, device=x.device)


def _check_rows(*tensors: Tensor) -> None:
    """As CUDA's kernels check: rows of queries, keys and values may have any distance, their elements none.

    torch makes outputs and their gradients contiguous itself.
    """
    for x in tensors:
        if x.stride(-1) != 1:
            raise ValueError(f"attention: strides {x.stride()}: the elements of a row must be next to each other")


def _check_lse(lse: Tensor) -> None:
    """CUDA's backward reads the log-sum-exp by its address, whatever its strides are; the CPU's honours them."""
    if not lse.is_contiguous():
        raise ValueError(f"attention: log-sum-exp of shape {tuple(lse.shape)}, strides {lse.stride()}: not contiguous")


def pack_attention(lengths: Sequence[int]) -> TaskAttention:
    """Block-diagonal causal attention over consecutive sequences."""
    return TaskAttention(PackKernel(tuple(lengths)))


@dataclass(slots=True)
class PackKernel:
    """On CUDA one call for all sequences of a pack, on CPU one a sequence."""

    lengths: tuple[int, ...]
    _bounds: Tensor | None = field(default=None, repr=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if on_cuda(query):
            return self._varlen_forward(query, key, value)
        found = [forward(query[:, rows], key[:, rows], value[:, rows], causal=True) for rows in self._rows()]
        if len(found) == 1:
            return found[0]
        parts, lse = zip(*found, strict=True)
        return _join(parts), torch.cat(lse, 1)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        if on_cuda(query):
            return self._varlen_backward(gradient, query, key, value, out, lse)
        found = []
        for rows in self._rows():
            g, q, k, v, o, s = (x[:, rows] for x in (gradient, query, key, value, out, lse))
            found.append(backward(g, q, k, v, o, s.contiguous(), causal=True))
        if len(found) == 1:
            return found[0]
        dq, dk, dv = zip(*found, strict=True)
        return _join(dq), _join(dk), _join(dv)

    def _rows(self) -> Iterator[slice]:
        ends = accumulate(self.lengths)
        return (slice(end - length, end) for length, end in zip(self.lengths, ends, strict=True))

    def _varlen_forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        _check_rows(query, key, value)
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        out, lse, *_ = aten._flash_attention_forward(q, k, v, *self.varlen_shape(query), 0.0, True, False)
        return out.transpose(0, 1), lse

    def _varlen_backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        _check_rows(query, key, value)
        _check_lse(lse)
        g, q, k, v, o = (x.transpose(0, 1) for x in (gradient, query, key, value, out))
        shape, state = self.varlen_shape(query), _random_state(query)
        dq, dk, dv = aten._flash_attention_backward(g, q, k, v, o, lse, *shape, 0.0, True, *state)
        return dq.transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1)

    def varlen_shape(self, query: Tensor) -> tuple[Tensor, Tensor, int, int]:
        """Bounds of the sequences (int32, contiguous) and their longest, for queries and keys.

        At a longest of 1 the kernel would swap heads and tokens of the log-sum-exp: 2 is as right and does not.
        """
        if self._bounds is None:
            bounds = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)
            self._bounds = without_waiting(bounds, query.device)
        longest = max((2, *self.lengths))
        return self._bounds, self._bounds, longest, longest


def without_waiting(host: Tensor, device: torch.device) -> Tensor:
    """On the device. From memory that is not pinned a copy would begin once the device has done all before it, hops included."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenates [heads, n, size] by tokens; in memory tokens come first, as projections want them."""
    return torch.cat([part.transpose(0, 1) for part in parts]).transpose(0, 1)


Result = tuple[Tensor, Tensor]  # output and log-sum-exp


@dataclass(frozen=True, slots=True)
class Kept:
    """A kernel that keeps the result of every forward in `results`, for `Repeated`."""

    kernel: Kernel
    results: list[Result]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Result:
        self.results.append(self.kernel.forward(query, key, value))
        return self.results[-1]

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        return self.kernel.backward(gradient, query, key, value, out, lse)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A kernel whose forwards are those that were kept, in their order.

    Each leaves the list: its output becomes part of a graph that holds this kernel, and must not be held by it.
    """

    kernel: Kernel
    results: list[Result]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Result:
        return self.results.pop(0)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        return self.kernel.backward(gradient, query, key, value, out, lse)
