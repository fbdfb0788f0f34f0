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
from coxswain_train.model.loss import IdRange, linear_cross_entropy
from coxswain_train.model.tensor_parallel import ModelPart, embed, enter, leave

# (query [heads, tokens, size], key and value [kv heads, tokens, size]) -> [heads, tokens, size]: causal within each sequence.
AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotary = tuple[Tensor, Tensor]  # cosines and sines, [tokens, size of a head]
Layer = Callable[[Tensor, Rotary, AttentionFn], Tensor]


class Decoder(Protocol):
    """What the engine needs of a model, or of a rank's part of one. The first stage alone embeds, the last has losses."""

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

    def train(self, mode: bool) -> Self:
        """As of every module of torch. False while an evaluation runs."""
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
    """Grouped-query attention with rotary positions; `attend` decides which tokens attend to which.

    A tensor group shares the heads; a key head that several of its ranks need is on each of them.
    """

    def __init__(self, config: ModelConfig, part: ModelPart) -> None:
        super().__init__()
        size = self.size = config.size_of_head
        heads, kv_heads = config.heads // part.degree, max(1, config.kv_heads // part.degree)
        self.group = part.group
        self.q_proj = Linear(heads * size, config.hidden, config.qkv_bias)
        self.k_proj = Linear(kv_heads * size, config.hidden, config.qkv_bias)
        self.v_proj = Linear(kv_heads * size, config.hidden, config.qkv_bias)
        self.o_proj = Linear(config.hidden, heads * size)
        norms = (RMSNorm(size, config.norm_epsilon) if config.qk_norm else nn.Identity() for _ in "qk")
        self.q_norm, self.k_norm = norms

    def forward(self, x: Tensor, rotary: Rotary, attend: AttentionFn) -> Tensor:
        x = enter(x, self.group)
        q, k, v = (proj(x).unflatten(-1, (-1, self.size)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary)
        out = attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        return leave(self.o_proj(out.transpose(0, 1).flatten(1)), self.group)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, part: ModelPart) -> None:
        super().__init__()
        inner, self.group = config.feed_forward // part.degree, part.group
        self.gate_proj = Linear(inner, config.hidden)
        self.up_proj = Linear(inner, config.hidden)
        self.down_proj = Linear(config.hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = enter(x, self.group)
        return leave(self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)), self.group)


class LlamaLayer(nn.Module):
    def __init__(self, config: ModelConfig, part: ModelPart) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.self_attn = SelfAttention(config, part)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_epsilon)
        self.mlp = FeedForward(config, part)

    def forward(self, x: Tensor, rotary: Rotary, attend: AttentionFn) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Body(nn.Module):
    """The part that Hugging Face names `model`. Layers keep their numbers in the whole model."""

    def __init__(self, config: ModelConfig, rows: int, part: ModelPart) -> None:
        super().__init__()
        if part.first or (part.last and config.tied_head):
            self.embed_tokens = Linear(rows, config.hidden)
        self.layers = nn.ModuleDict({str(n): LlamaLayer(config, part) for n in range(part.start, part.stop)})
        if part.last:
            self.norm = RMSNorm(config.hidden, config.norm_epsilon)


class Llama(nn.Module):
    """A rank's part of the decoder; by default all of it. Weights are uninitialised until the optimizer gathers them.

    `ids`: of the tokenizer, whose rows always count in the loss; 0: unknown.
    """

    def __init__(self, config: ModelConfig, vocabulary: int, part: ModelPart | None = None, ids: int = 0) -> None:
        super().__init__()
        self.config, self.part, self._ids = config, part or ModelPart(0, config.layers, config.layers), ids
        rows = vocabulary // self.part.degree
        self.model = _Body(config, rows, self.part)
        self.lm_head = Linear(rows, config.hidden) if self.part.last and not config.tied_head else None
        self._rows: int | None = None  # of this rank that count in the loss; None: all

    def leave_out_empty_rows(self) -> None:
        """Takes rows that are zero at the vocabulary's end, and of no id, out of the loss: imported weights lack them.

        A row of an id may be zero as well: published weights have such of ids that their training did not use.
        """
        if not self.part.last:
            return
        weight = self._head.weight
        first, filled = self.part.index * len(weight), (weight != 0).any(1).nonzero()
        count = torch.tensor([first + int(filled[-1]) + 1 if len(filled) else 0], device=weight.device)
        if self.part.group:
            self.part.group.maximum(count)
        self._rows = min(max(0, max(int(count), self._ids) - first), len(weight)) if count else None

    @property
    def _head(self) -> Linear:
        return self.model.embed_tokens if self.lm_head is None else self.lm_head

    @property
    def stack(self) -> Sequence[Layer]:
        return list(self.model.layers.values())

    def rotary(self, positions: Tensor) -> Rotary:
        """Angles in fp64, so that positions of millions keep their fraction."""
        angles = positions.double()[:, None] * frequencies(self.config, positions.device)
        angles = torch.cat((angles, angles), -1)
        dtype = next(self.parameters()).dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return embed(tokens, self.model.embed_tokens.weight, self.part.group)

    def token_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        weight: Tensor = self._head.weight
        ids = IdRange(self.part.group, self.part.index * len(weight)) if self.part.group else None
        if self._rows not in (None, len(weight)):
            weight = weight[: self._rows]
        return linear_cross_entropy(self.model.norm(hidden), weight, labels, ids=ids)

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
