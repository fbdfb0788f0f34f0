"""Model shapes by name. The vocabulary is the tokenizer's unless the job says otherwise."""

from __future__ import annotations

from typing import Final, Literal

from coxswain.config import ModelConfig

PresetName = Literal["llama-tiny", "llama-mini", "llama-small", "llama-1b", "llama-7b", "llama-13b", "llama-70b"]


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int, tied_head: bool = False
) -> ModelConfig:
    return ModelConfig(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, feed_forward=feed_forward, tied_head=tied_head
    )


# Parameters without embedding and head: tiny 0.8 M, mini 5 M, small 85 M, then the published shapes.
PRESETS: Final[dict[PresetName, ModelConfig]] = {
    "llama-tiny": _llama(4, 128, 4, 2, 384, tied_head=True),
    "llama-mini": _llama(6, 256, 8, 4, 768, tied_head=True),
    "llama-small": _llama(12, 768, 12, 4, 2304),
    "llama-1b": _llama(16, 2048, 32, 8, 8192, tied_head=True),
    "llama-7b": _llama(32, 4096, 32, 32, 11008),
    "llama-13b": _llama(40, 5120, 40, 40, 13824),
    "llama-70b": _llama(80, 8192, 64, 8, 28672),
}
