"""The plain process that the engine is judged by: one device, one sequence at a time, everything from torch itself.

Written apart from the engine on purpose; they share parameter names and initial values, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coxswain.boxes import full_box
from coxswain.config import ModelConfig, OptimizerConfig
from coxswain_train.model.init_weights import init_box

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Stream:
    """Steps of sequences of token ids, drawn from a seed. The last label of every third sequence is the next token."""

    lengths: tuple[int, ...]
    vocabulary: int
    seed: int = 0

    def sequence(self, step: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels."""
        rng = np.random.default_rng((self.seed, step, index))
        ids = rng.integers(0, self.vocabulary, self.lengths[index] + 1)
        labels = ids[1:].copy()
        if index % 3:
            labels[-1] = -100
        return ids[:-1], labels

    def labels(self, step: int) -> int:
        return sum(int((self.sequence(step, i)[1] >= 0).sum()) for i in range(len(self.lengths)))


def initial(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype) -> Weights:
    arrays = {name: init_box(seed, full_box(name, shape), shape, config) for name, shape in shapes.items()}
    return {name: torch.from_numpy(a).to(dtype).requires_grad_() for name, a in arrays.items()}


def loss_sum(config: ModelConfig, w: Weights, tokens: Tensor, labels: Tensor) -> Tensor:
    """Llama's decoder over one sequence."""
    x = F.embedding(tokens, w["model.embed_tokens.weight"])
    for i in range(config.layers):
        p = f"model.layers.{i}."
        x = x + _attention(config, w, p + "self_attn.", _norm(config, x, w[p + "input_layernorm.weight"]))
        h = _norm(config, x, w[p + "post_attention_layernorm.weight"])
        gate = F.silu(h @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if config.tied_head else "lm_head.weight"]
    logits = _norm(config, x, w["model.norm.weight"]) @ head.T
    return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def _norm(config: ModelConfig, x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, config.norm_epsilon)


def _attention(config: ModelConfig, w: Weights, p: str, x: Tensor) -> Tensor:
    n, size = len(x), config.head_size or config.hidden // config.heads
    q, k, v = (
        (x @ w[f"{p}{name}_proj.weight"].T + w.get(f"{p}{name}_proj.bias", 0)).view(n, heads, size).transpose(0, 1)
        for name, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    if config.qk_norm:
        q, k = (_norm(config, t, w[f"{p}{name}_norm.weight"]) for name, t in (("q", q), ("k", k)))
    q, k = _rope(config, q), _rope(config, k)
    k, v = (t.repeat_interleave(config.heads // config.kv_heads, 0) for t in (k, v))
    scores = (q @ k.transpose(1, 2)) / size**0.5
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1) @ w[f"{p}o_proj.weight"].T


def _rope(config: ModelConfig, x: Tensor) -> Tensor:
    """By complex numbers: element i pairs with element i + size/2."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1]).double()[:, None] * config.rope_theta ** -(torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


def gradient(config: ModelConfig, w: Weights, stream: Stream, step: int) -> float:
    """Leaves the step's gradient in `w`; returns the sum of the losses."""
    total, labels = 0.0, stream.labels(step)
    for index in range(len(stream.lengths)):
        tokens, targets = (torch.from_numpy(a) for a in stream.sequence(step, index))
        loss = loss_sum(config, w, tokens, targets)
        (loss / labels).backward()
        total += float(loss.detach())
    return total


def train(
    config: ModelConfig, w: Weights, stream: Stream, optimizer: OptimizerConfig, rates: Sequence[float]
) -> list[float]:
    """Some AdamW steps with clipping, at these learning rates; returns the mean losses."""
    groups = [
        {"params": [t for t in w.values() if t.dim() > 1], "weight_decay": optimizer.weight_decay},
        {"params": [t for t in w.values() if t.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (optimizer.beta1, optimizer.beta2)
    adam = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=optimizer.epsilon, foreach=False)
    losses = []
    for step, rate in enumerate(rates):
        losses.append(gradient(config, w, stream, step) / stream.labels(step))
        torch.nn.utils.clip_grad_norm_(list(w.values()), optimizer.gradient_clip)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        adam.zero_grad()
    return losses
