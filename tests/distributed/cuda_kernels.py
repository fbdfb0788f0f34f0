"""CUDA's flash kernels, emulated on the CPU: what they check, and what they read by address whatever its strides are.

From torch's `flash_api.cpp` and `attention_backward.cu`: rows of queries, keys and values must be dense in their last
dimension; outputs and their gradients are made contiguous; the log-sum-exp is read by `data_ptr()`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

_cpu_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def by_address(x: Tensor) -> Tensor:
    """The tensor that a kernel sees that takes a contiguous one's shape and this one's address."""
    strides = torch.empty(x.shape, device="meta").stride()
    return torch.as_strided(x, x.shape, strides)


class CudaKernels:
    """Stands for `torch.ops.aten` in `coxswain_train.model.attention`; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _scaled_dot_product_flash_attention(self, q: Tensor, k: Tensor, v: Tensor, _: float, causal: bool) -> Any:
        self.calls.append("forward")
        _dense(q, k, v)
        out, lse = _cpu_forward(q, k, v, 0.0, causal)
        return out, lse.contiguous(), None

    def _scaled_dot_product_flash_attention_backward(
        self, g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: None, cu_k: None, max_q: int,
        max_k: int, dropout: float, causal: bool, state: Tensor, unused: Tensor,
    ) -> Any:  # fmt: skip
        self.calls.append("backward")
        _dense(q, k, v)
        assert (max_q, max_k) == (q.shape[2], k.shape[2])
        return _cpu_backward(g.contiguous(), q, k, v, o.contiguous(), by_address(lse), 0.0, causal)

    def _flash_attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, dropout: float,
        causal: bool, debug: bool,
    ) -> Any:  # fmt: skip
        """Tokens, heads, size; log-sum-exp of heads, tokens."""
        self.calls.append("varlen forward")
        _dense(q, k, v)
        assert max_q > 1, "heads and tokens of the log-sum-exp would change places"
        out, lse = torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]))
        for rows in _sequences(cu_q, cu_k, max_q, max_k):
            part, part_lse = _cpu_forward(*(_batch(x[rows]) for x in (q, k, v)), 0.0, causal)
            out[rows], lse[:, rows] = part[0].transpose(0, 1), part_lse[0]
        return out, lse, None

    def _flash_attention_backward(
        self, g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor,
        max_q: int, max_k: int, dropout: float, causal: bool, state: Tensor, unused: Tensor,
    ) -> Any:  # fmt: skip
        self.calls.append("varlen backward")
        _dense(q, k, v)
        grads, seen = [torch.empty_like(x) for x in (q, k, v)], by_address(lse)
        for rows in _sequences(cu_q, cu_k, max_q, max_k):
            parts = (_batch(x[rows]) for x in (g, q, k, v, o))
            for whole, part in zip(grads, _cpu_backward(*parts, seen[None, :, rows], 0.0, causal), strict=True):
                whole[rows] = part[0].transpose(0, 1)
        return grads


def _dense(*tensors: Tensor) -> None:
    assert all(x.stride(-1) == 1 for x in tensors), "Input tensor must have contiguous last dimension"


def _batch(x: Tensor) -> Tensor:
    """From [tokens, heads, size] to [1, heads, tokens, size]."""
    return x.transpose(0, 1)[None]


def _sequences(cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> list[slice]:
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert cu_q.is_contiguous()
    assert cu_k.is_contiguous()
    bounds = cu_q.tolist()
    assert max(b - a for a, b in pairwise(bounds)) <= min(max_q, max_k)
    return [slice(a, b) for a, b in pairwise(bounds)]
