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
    width, size, inner = model.hidden, model.hidden // model.heads, model.feed_forward
    prefix, keys = f"model.layers.{layer}", (model.kv_heads * size, width)
    return [
        ParameterSpec(f"{prefix}.input_layernorm.weight", (width,), layer),
        ParameterSpec(f"{prefix}.self_attn.q_proj.weight", (model.heads * size, width), layer, 0, model.heads),
        ParameterSpec(f"{prefix}.self_attn.k_proj.weight", keys, layer, 0, model.kv_heads, True),
        ParameterSpec(f"{prefix}.self_attn.v_proj.weight", keys, layer, 0, model.kv_heads, True),
        ParameterSpec(f"{prefix}.self_attn.o_proj.weight", (width, model.heads * size), layer, 1, model.heads),
        ParameterSpec(f"{prefix}.post_attention_layernorm.weight", (width,), layer),
        ParameterSpec(f"{prefix}.mlp.gate_proj.weight", (inner, width), layer, 0),
        ParameterSpec(f"{prefix}.mlp.up_proj.weight", (inner, width), layer, 0),
        ParameterSpec(f"{prefix}.mlp.down_proj.weight", (width, inner), layer, 1),
    ]
