"""A model's `config.json` in Hugging Face's format: written at export, compared before foreign weights are read.

Tensors of the right shapes may still belong to another model: with other rotations, heads or norms they train without
an error, and wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coxswain.config import ModelConfig

_ALIKE = ("llama", "mistral")  # model types that compute the same, given what is compared below
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "sliding_window": None}
"""What this engine's decoder always does, and the default of a config that does not name it."""

_OURS = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kvHeads",
    "head_dim": "hidden / heads",
    "intermediate_size": "feedForward",
    "rms_norm_eps": "normEpsilon",
    "tie_word_embeddings": "head: Tied",
}
"""The fields of `spec.model.config` by the names of a config.json."""


def to_config(model: ModelConfig, vocabulary: int, longest: int) -> dict[str, Any]:
    """The config that `LlamaForCausalLM.from_pretrained` needs. `longest` is the job's maximum sequence."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "max_position_embeddings": longest,
        "torch_dtype": "float32",
        "rope_theta": model.rope_theta,  # for releases before 5
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        **{k: v for k, v in _FIXED.items() if k != "sliding_window"},
        **_shape(model),
    }


def differences(found: Mapping[str, Any], model: ModelConfig) -> Iterator[str]:
    """Sentences that name what of a config.json is not this model. The tensors' shapes decide on the vocabulary."""
    if found.get("model_type", "llama") not in _ALIKE:
        yield f"model_type is {found['model_type']!r}, allowed are {', '.join(_ALIKE)}"
    wanted = {**_FIXED, **_shape(model)}
    meant = {**_FIXED, **_defaults(found)}
    for name, value in wanted.items():
        theirs = meant.get(name, value) if found.get(name) is None else found[name]
        if theirs != value:
            yield f"{name} is {theirs}, {_owner(name)} is {value}"
    yield from _rotary_differences(found, model)


def _owner(name: str) -> str:
    return f"this job's model.config.{_OURS[name]}" if name in _OURS else "this engine's"


def _shape(model: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "intermediate_size": model.feed_forward,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied_head,
    }


def _defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a Llama config for what is absent or null."""
    heads = found.get("num_attention_heads")
    derived = {"num_key_value_heads": heads, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    return {name: value for name, value in derived.items() if value is not None}


def _rotary_differences(found: Mapping[str, Any], model: ModelConfig) -> Iterator[str]:
    """Newer files have `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    rotary = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    theta = float(rotary.get("rope_theta") or found.get("rope_theta") or 10000.0)
    if kind != "default":
        yield f"rope_type is {kind!r}, allowed is 'default'"
    if theta != model.rope_theta:
        yield f"rope_theta is {theta:g}, this job's ropeTheta is {model.rope_theta:g}"
