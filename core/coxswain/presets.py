"""Model shapes by name. Shapes without a version take the tokenizer's vocabulary."""

from __future__ import annotations

from typing import Any, Final, Literal

from coxswain.config import ModelConfig, RopeScaling

TYPICAL_ROWS = 32_000  # of a vocabulary that follows a tokenizer, where no tokenizer is known

PresetName = Literal[
    "llama-tiny", "llama-mini", "llama-small", "llama-1b", "llama-7b", "llama-13b", "llama-70b",
    "llama-2-7b", "llama-3-8b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b-v0.3",
    "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
]  # fmt: skip


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int, **more: Any) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, feed_forward=feed_forward, **more)


def _llama3(
    layers: int, hidden: int, heads: int, feed_forward: int, factor: float = 0.0, tied_head: bool = False
) -> ModelConfig:
    scaling = RopeScaling(kind="Llama3", factor=factor, original_context=8192) if factor else None
    return _llama(
        layers,
        hidden,
        heads,
        8,
        feed_forward,
        vocabulary=128_256,
        rope_theta=5e5,
        tied_head=tied_head,
        rope_scaling=scaling,
    )


def _qwen(layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int, **more: Any) -> ModelConfig:
    known = {"vocabulary": 151_936, "rope_theta": 1e6, "norm_epsilon": 1e-6}
    return _llama(layers, hidden, heads, kv_heads, feed_forward, **{**known, **more})


_QWEN3 = {"qk_norm": True, "head_size": 128}

# Parameters without embedding and head: tiny 0.8 M, mini 5 M, small 85 M, then shapes that take any tokenizer.
# Those with a version in their name are the published ones, with the rows of their own vocabulary.
PRESETS: Final[dict[PresetName, ModelConfig]] = {
    "llama-tiny": _llama(4, 128, 4, 2, 384, tied_head=True),
    "llama-mini": _llama(6, 256, 8, 4, 768, tied_head=True),
    "llama-small": _llama(12, 768, 12, 4, 2304),
    "llama-1b": _llama(16, 2048, 32, 8, 8192, tied_head=True),
    "llama-7b": _llama(32, 4096, 32, 32, 11008),
    "llama-13b": _llama(40, 5120, 40, 40, 13824),
    "llama-70b": _llama(80, 8192, 64, 8, 28672),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, vocabulary=32_000),
    "llama-3-8b": _llama3(32, 4096, 32, 14336),
    "llama-3.1-8b": _llama3(32, 4096, 32, 14336, factor=8.0),
    "llama-3.1-70b": _llama3(80, 8192, 64, 28672, factor=8.0),
    "llama-3.2-1b": _llama3(16, 2048, 32, 8192, factor=32.0, tied_head=True),
    "llama-3.2-3b": _llama3(28, 3072, 24, 8192, factor=32.0, tied_head=True),
    "mistral-7b-v0.3": _llama(32, 4096, 32, 8, 14336, vocabulary=32_768, rope_theta=1e6),
    "qwen2.5-0.5b": _qwen(24, 896, 14, 2, 4864, qkv_bias=True, tied_head=True),
    "qwen2.5-1.5b": _qwen(28, 1536, 12, 2, 8960, qkv_bias=True, tied_head=True),
    "qwen2.5-7b": _qwen(28, 3584, 28, 4, 18944, qkv_bias=True, vocabulary=152_064),
    "qwen3-0.6b": _qwen(28, 1024, 16, 8, 3072, tied_head=True, **_QWEN3),
    "qwen3-1.7b": _qwen(28, 2048, 16, 8, 6144, tied_head=True, **_QWEN3),
    "qwen3-4b": _qwen(36, 2560, 32, 8, 9728, tied_head=True, **_QWEN3),
    "qwen3-8b": _qwen(36, 4096, 32, 8, 12288, **_QWEN3),
}
