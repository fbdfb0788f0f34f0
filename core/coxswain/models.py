"""The parameters of each model family: names as in Hugging Face's safetensors files, shapes, stages, and how they split."""

from __future__ import annotations

from coxswain.config import ModelConfig
from coxswain.holdings import ParameterSpec


def parameter_specs(model: ModelConfig, vocabulary: int) -> tuple[ParameterSpec, ...]:
    """Every parameter of the whole model, in the model's order. `vocabulary`: rows of the embedding."""
    width = model.hidden
    specs = [ParameterSpec("model.embed_tokens.weight", (vocabulary, width), "ends" if model.tied_head else "first", 0)]
    for layer in range(model.layers):
        specs += _layer(model, layer)
    specs.append(ParameterSpec("model.norm.weight", (width,), "last"))
    if not model.tied_head:
        specs.append(ParameterSpec("lm_head.weight", (vocabulary, width), "last", 0))
    return tuple(specs)


def _layer(model: ModelConfig, layer: int) -> list[ParameterSpec]:
    width, inner, prefix = model.hidden, model.feed_forward, f"model.layers.{layer}"
    return [
        ParameterSpec(f"{prefix}.input_layernorm.weight", (width,), layer),
        *_attention(model, layer, f"{prefix}.self_attn"),
        ParameterSpec(f"{prefix}.post_attention_layernorm.weight", (width,), layer),
        ParameterSpec(f"{prefix}.mlp.gate_proj.weight", (inner, width), layer, 0),
        ParameterSpec(f"{prefix}.mlp.up_proj.weight", (inner, width), layer, 0),
        ParameterSpec(f"{prefix}.mlp.down_proj.weight", (width, inner), layer, 1),
    ]


def _attention(model: ModelConfig, layer: int, prefix: str) -> list[ParameterSpec]:
    """A bias is cut like the rows of its matrix. A norm of queries or keys is whole on every rank, for its own heads."""
    width, size = model.hidden, model.size_of_head
    specs = []
    for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
        is_partial, rows = name != "q", heads * size
        specs.append(ParameterSpec(f"{prefix}.{name}_proj.weight", (rows, width), layer, 0, heads, is_partial))
        if model.qkv_bias:
            specs.append(ParameterSpec(f"{prefix}.{name}_proj.bias", (rows,), layer, 0, heads, is_partial))
    specs.append(ParameterSpec(f"{prefix}.o_proj.weight", (width, model.heads * size), layer, 1, model.heads))
    if model.qk_norm:
        specs += [ParameterSpec(f"{prefix}.{name}_norm.weight", (size,), layer, partial=True) for name in "qk"]
    return specs
