"""Attention on one device: the kernel with its log-sum-exp, and packs of several causal sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from coxswain_train.model.llama import AttentionFn

_aten = torch.ops.aten


def forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Output [heads, n, size] and log-sum-exp [heads, n]: queries [heads, n, size], keys and values [kv heads, m, size].

    `causal` needs n == m. Flash attention (Dao, arXiv 2307.08691), which on CPU also does fp64.
    """
    q, k, v = query[None], key[None], value[None]
    if query.is_cuda:
        k, v = (_expand(x, q.shape[1]) for x in (k, v))
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out[0], lse[0]


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. `out` and `lse` may be over more keys: then the part of these keys."""
    g, q, k, v, o, s = (x[None] for x in (gradient, query, key, value, out, lse))
    if query.is_cuda:
        dq, dk, dv = _cuda_backward(g, q, _expand(k, q.shape[1]), _expand(v, q.shape[1]), o, s, causal)
        return dq[0], _fold(dk[0], len(key)), _fold(dv[0], len(key))
    dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, s, 0.0, causal)
    return dq[0], dk[0], dv[0]


def _cuda_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, s: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # random state: there is no dropout
    empty = torch.zeros((), dtype=torch.uint64, device=q.device)
    grads: tuple[Tensor, Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, s, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, empty
    )
    return grads


def _expand(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1)


def _fold(x: Tensor, kv_heads: int) -> Tensor:
    """Sums [heads, n, size] over the query heads that share a key head."""
    return x.view(kv_heads, -1, *x.shape[1:]).sum(1)


def pack_attention(lengths: Sequence[int]) -> AttentionFn:
    """Block-diagonal causal attention over consecutive sequences."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        pieces = zip(*(torch.split(x, list(lengths), 1) for x in (query, key, value)), strict=True)
        return torch.cat([_causal(q, k, v) for q, k, v in pieces], 1)

    return attend


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    out = scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True, enable_gqa=True)
    return out[0]
