"""A model's `config.json` in Hugging Face's format: written at export, compared before foreign weights are read.

Tensors of the right shapes may still belong to another model: with other rotations, heads or norms they train without
an error, and wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coxswain.config import ModelConfig, RopeScaling

_ABSENT: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
"""The model types that this engine computes, each with the defaults of its own where a config.json lacks a field."""
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}  # Mistral's: as Llama
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0}
"""What this engine's decoder always does, and the default of a config that does not name it."""

_OURS = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kvHeads",
    "head_dim": "headSize",
    "intermediate_size": "feedForward",
    "rms_norm_eps": "normEpsilon",
    "tie_word_embeddings": "head: Tied",
}
"""The fields of `spec.model.config` by the names of a config.json."""


def to_config(model: ModelConfig, vocabulary: int, longest: int, dtype: str = "float32") -> dict[str, Any]:
    """The config that `AutoModelForCausalLM.from_pretrained` needs. `longest` is the job's maximum sequence."""
    kind, rotary = _model_type(model), _rope_parameters(model)
    fixed = _FIXED if kind == "llama" else {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
    return {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "vocab_size": vocabulary,
        "max_position_embeddings": longest,
        "torch_dtype": dtype,
        "rope_theta": model.rope_theta,  # these two for releases before 5
        "rope_scaling": None if model.rope_scaling is None else rotary,
        "rope_parameters": {**rotary, "rope_theta": model.rope_theta},
        **{name: value for name, value in fixed.items() if name != "partial_rotary_factor"},
        **_shape(model),
    }


def differences(found: Mapping[str, Any], model: ModelConfig) -> Iterator[str]:
    """Sentences that name what of a config.json is not this model. The tensors' shapes decide on the vocabulary."""
    kind = found.get("model_type", "llama")
    if kind not in _ABSENT:
        yield f"model_type is {kind!r}, allowed are {', '.join(_ABSENT)}"
        return
    yield from _family_differences(kind, model)
    meant = _meant(kind, found)
    for name, value in {**_FIXED, **_shape(model)}.items():
        if meant[name] != value:
            yield f"{name} is {meant[name]}, {_owner(name)} is {value}"
    yield from _window_differences(kind, meant)
    yield from _rotary_differences(found, model)


def _model_type(model: ModelConfig) -> str:
    return "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"


def _family_differences(kind: str, model: ModelConfig) -> Iterator[str]:
    bias, norm = "Learned" if model.qkv_bias else "None", "RMSNorm" if model.qk_norm else "None"
    for field, owner, ours in (("qkvBias", "qwen2", bias), ("qkNorm", "qwen3", norm)):
        if (ours != "None") != (kind == owner):
            yield f"model_type is {kind!r}, this job's model.config.{field} is {ours}"


def _window_differences(kind: str, meant: Mapping[str, Any]) -> Iterator[str]:
    """Qwen's files name a window that `use_sliding_window` turns off."""
    window = meant.get("sliding_window")
    if window is not None and (kind == "mistral" or meant.get("use_sliding_window", kind == "llama")):
        yield f"sliding_window is {window}, this engine's attention has none (null)"


def _owner(name: str) -> str:
    return f"this job's model.config.{_OURS[name]}" if name in _OURS else "this engine's"


def _shape(model: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.size_of_head,
        "intermediate_size": model.feed_forward,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied_head,
    }


def _meant(kind: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its model type's defaults for what is absent, and what follows from the rest for what is null."""
    given = {**_ABSENT[kind], **found}
    heads, width = given.get("num_attention_heads"), given.get("hidden_size")
    derived = {
        **_FIXED, **dict.fromkeys(_OURS), "num_key_value_heads": heads, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "head_dim": width // heads if heads and width else None,
    }  # fmt: skip
    return derived | {name: value for name, value in given.items() if value is not None}


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    match model.rope_scaling:
        case None:
            return {"rope_type": "default"}
        case RopeScaling(kind="Linear", factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case scaling:
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_context,
            }


def _rotary_differences(found: Mapping[str, Any], model: ModelConfig) -> Iterator[str]:
    """Newer files have `rope_parameters`, older ones `rope_theta` and `rope_scaling`, which counts where a file has both."""
    rotary = found.get("rope_scaling") or found.get("rope_parameters") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    theta = float(rotary.get("rope_theta") or found.get("rope_theta") or 10000.0)
    wanted = _rope_parameters(model)
    if kind not in ("default", "linear", "llama3"):
        yield f"rope_type is {kind!r}, allowed are default, linear and llama3"
    elif kind != wanted["rope_type"]:
        yield f"rope_type is {kind!r}, this job's model.config.ropeScaling means {wanted['rope_type']!r}"
    else:
        given = {"original_max_position_embeddings": found.get("max_position_embeddings"), **rotary}
        for name in wanted.keys() - {"rope_type"}:
            if given.get(name) != wanted[name]:
                yield f"{name} is {given.get(name)}, this job's model.config.ropeScaling has {_exact(wanted[name])}"
    if theta != model.rope_theta:
        yield f"rope_theta is {_exact(theta)}, this job's ropeTheta is {_exact(model.rope_theta)}"
    if rotary.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor is {rotary['partial_rotary_factor']}, this engine's is 1.0"


def _exact(number: float) -> str:
    """In six digits where these are all."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
