"""Decoders of the Llama family (Llama, Mistral, Qwen 2 and 3), and the narrow Protocol that is all the engine knows of a model.

Parameters are named as in Hugging Face's safetensors files. Activations of a task are [tokens, hidden], without
a batch dimension; only `attend` and the positions know where sequences begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from coxswain.config import ModelConfig
from coxswain_train.model.loss import linear_cross_entropy

# (query [heads, tokens, size], key and value [kv heads, tokens, size]) -> [heads, tokens, size]: causal within each sequence.
AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotary = tuple[Tensor, Tensor]  # cosines and sines, [tokens, size of a head]
Layer = Callable[[Tensor, Rotary, AttentionFn], Tensor]


class Decoder(Protocol):
    """What the engine needs of a model (or of a stage of one)."""

    @property
    def stack(self) -> Sequence[Layer]:
        """The layers in order."""
        ...

    def rotary(self, positions: Tensor) -> Rotary:
        """Cosines and sines of the positions [tokens], made once a task."""
        ...

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids [tokens] at their positions [tokens] to activations [tokens, hidden]."""
        ...

    def token_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The sum of the token losses, in nats; a token with label -100 has none."""
        ...

    def weights(self) -> Mapping[str, nn.Parameter]:
        """Every parameter by its name in Hugging Face's layout."""
        ...

    def leave_out_empty_rows(self) -> None:
        """Called once the weights have their values: takes rows that are zero at the vocabulary's end out of the loss."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """As of every module of torch."""
        ...


class Linear(nn.Module):
    """A weight [outputs, inputs] without values yet. (torch's layers draw values, or on `meta` import for 4 s.)"""

    def __init__(self, outputs: int, inputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Zhang and Sennrich, arXiv 1910.07467; computed in at least fp32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions; `attend` decides which tokens attend to which."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = self.size = config.size_of_head
        self.q_proj = Linear(config.heads * size, config.hidden, config.qkv_bias)
        self.k_proj = Linear(config.kv_heads * size, config.hidden, config.qkv_bias)
        self.v_proj = Linear(config.kv_heads * size, config.hidden, config.qkv_bias)
        self.o_proj = Linear(config.hidden, config.heads * size)
        norms = (RMSNorm(size, config.norm_epsilon) if config.qk_norm else nn.Identity() for _ in "qk")
        self.q_norm, self.k_norm = norms

    def forward(self, x: Tensor, rotary: Rotary, attend: AttentionFn) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.size)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary)
        out = attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        mixed: Tensor = self.o_proj(out.transpose(0, 1).flatten(1))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.feed_forward, config.hidden)
        self.up_proj = Linear(config.feed_forward, config.hidden)
        self.down_proj = Linear(config.hidden, config.feed_forward)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LlamaLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotary: Rotary, attend: AttentionFn) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Body(nn.Module):
    """The part that Hugging Face names `model`."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = Linear(vocabulary, config.hidden)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_epsilon)


class Llama(nn.Module):
    """The whole decoder on one device. Weights are uninitialised until the optimizer gathers them."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config, vocabulary)
        self.lm_head = None if config.tied_head else Linear(vocabulary, config.hidden)
        self._rows: int | None = None  # that count in the loss; None: all

    def leave_out_empty_rows(self) -> None:
        """Takes rows that are zero at the vocabulary's end out of the loss: imported weights lack them, and no id is theirs."""
        filled = (self._head.weight != 0).any(1).nonzero()
        self._rows = int(filled[-1]) + 1 if len(filled) else None

    @property
    def _head(self) -> Linear:
        return self.model.embed_tokens if self.lm_head is None else self.lm_head

    @property
    def stack(self) -> Sequence[Layer]:
        return list(self.model.layers)

    def rotary(self, positions: Tensor) -> Rotary:
        """Angles in fp64, so that positions of millions keep their fraction."""
        angles = positions.double()[:, None] * frequencies(self.config, positions.device)
        angles = torch.cat((angles, angles), -1)
        dtype = self.model.embed_tokens.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return functional.embedding(tokens, self.model.embed_tokens.weight)

    def token_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        weight: Tensor = self._head.weight
        if self._rows not in (None, len(weight)):
            weight = weight[: self._rows]
        return linear_cross_entropy(self.model.norm(hidden), weight, labels)

    def weights(self) -> Mapping[str, nn.Parameter]:
        return dict(self.named_parameters())


def frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Angle of one position, by pair of a head's elements: fp64 [size / 2]."""
    exponents = torch.arange(0, config.size_of_head, 2, dtype=torch.float64, device=device) / config.size_of_head
    plain, scaling = config.rope_theta**-exponents, config.rope_scaling
    if scaling is None:
        return plain
    stretched = plain / scaling.factor
    if scaling.kind == "Linear":
        return stretched
    waves = scaling.original_context * plain / (2 * math.pi)  # of the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    share = ((waves - low) / (high - low)).clamp(0, 1)
    return torch.lerp(stretched, plain, share)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary embedding (Su et al., arXiv 2104.09864) of [tokens, heads, size], halves paired as in Hugging Face's Llama."""
    cos, sin = (part[:, None] for part in rotary)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
