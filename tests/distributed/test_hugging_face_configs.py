"""A `config.json` of Hugging Face: it is compared as transformers reads it, and an exported one names what releases look for."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain_train.checkpoint.huggingface import differences, to_config
from tests.distributed.test_hugging_face import FAMILIES, LLAMA3, MODEL
from tests.lazy import transformers

pytestmark = pytest.mark.timeout(300)  # the first test imports transformers


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_what_a_config_does_not_name_is_what_transformers_takes_there(family):
    named = {"hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 64, "intermediate_size": 96}
    theirs = getattr(transformers, f"{family}Config")(**named)
    model = ModelConfig(
        layers=2, hidden=4096, heads=64, kv_heads=theirs.num_key_value_heads, feed_forward=96,
        norm_epsilon=theirs.rms_norm_eps, rope_theta=theirs.rope_parameters["rope_theta"],
        head_size=getattr(theirs, "head_dim", None) or 0, tied_head=theirs.tie_word_embeddings,
        qkv_bias=family == "Qwen2", qk_norm=family == "Qwen3",
    )  # fmt: skip
    found = {"model_type": theirs.model_type, **named, **({"sliding_window": None} if family == "Mistral" else {})}
    assert list(differences(found, model)) == []


def test_what_a_config_leaves_null_follows_from_the_rest_as_in_transformers():
    null = dict.fromkeys(["num_key_value_heads", "head_dim", "rope_scaling"])
    named = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96} | null
    theirs = transformers.LlamaConfig(**named)
    model = ModelConfig(
        layers=2, hidden=128, heads=4, kv_heads=theirs.num_key_value_heads, head_size=theirs.head_dim, feed_forward=96,
        norm_epsilon=theirs.rms_norm_eps, rope_theta=theirs.rope_parameters["rope_theta"],
    )  # fmt: skip
    assert list(differences(named, model)) == []
    assert list(differences(named, replace(model, kv_heads=2)))


def test_an_exported_config_names_sizes_and_the_rotation_as_older_releases_of_transformers_read_it_too():
    _, fields, rope = FAMILIES["Llama 3.1"]
    found = [to_config(replace(MODEL, **more), 64, 128) for more in ({}, fields)]
    assert [config["rope_theta"] for config in found] == [MODEL.rope_theta] * 2
    assert [config["rope_scaling"] for config in found] == [None, rope]
    kinds = [config["rope_parameters"] for config in found]
    assert kinds == [{"rope_type": "default", "rope_theta": MODEL.rope_theta}, {**rope, "rope_theta": MODEL.rope_theta}]
    assert [(config["vocab_size"], config["max_position_embeddings"]) for config in found] == [(64, 128)] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_config_names_the_class_of_its_type_its_numbers_and_no_window(family):
    """Other readers than transformers' Auto classes go by these."""
    config = to_config(replace(MODEL, **FAMILIES[family][1]), 64, 128, "bfloat16")
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert config["architectures"] == [classes[config["model_type"]]]
    assert config["torch_dtype"] == "bfloat16"
    assert ("use_sliding_window" in config) == config["model_type"].startswith("qwen")
    assert not config.get("use_sliding_window")


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"qkv_bias": True}, "llama", "model_type is 'llama', this job's model.config.qkvBias is Learned"),
        ({"qk_norm": True}, "llama", "model_type is 'llama', this job's model.config.qkNorm is RMSNorm"),
    ],
)
def test_a_model_with_weights_of_a_familys_own_is_no_model_of_another_type(fields, kind, says):
    found = {**to_config(MODEL, 64, 128), "model_type": kind}
    assert list(differences(found, MODEL)) == []
    assert list(differences(found, replace(MODEL, **fields))) == [says]


@pytest.mark.parametrize(
    ("fields", "changes", "has_one"),
    [
        ({}, {"sliding_window": 32}, True),
        ({}, {"sliding_window": None}, False),
        ({}, {"sliding_window": 32, "model_type": "mistral"}, True),
        ({"qkv_bias": True}, {"sliding_window": 32, "use_sliding_window": True}, True),
        ({"qkv_bias": True}, {"sliding_window": 32, "use_sliding_window": False}, False),
        ({"qk_norm": True}, {"sliding_window": 32, "use_sliding_window": None}, False),
    ],
)
def test_a_window_counts_unless_its_family_leaves_it_off(fields, changes, has_one):
    model = replace(MODEL, **fields)
    says = "sliding_window is 32, this engine's attention has none (null)"
    assert list(differences(to_config(model, 64, 128) | changes, model)) == ([says] if has_one else [])


@pytest.mark.parametrize("heads", [None, 0])
def test_a_config_without_heads_is_refused_for_that(heads):
    found = to_config(MODEL, 64, 128) | {"num_attention_heads": heads, "head_dim": None}
    assert f"num_attention_heads is {heads}, this job's model.config.heads is 4" in differences(found, MODEL)


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
LOW = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0.5}
SCALED = {"rope_theta": 5e5, "rope_scaling": {**LOW, "high_freq_factor": 2.5}}
LONG = {**LOW, "high_freq_factor": 2.5, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("scaling", "changes", "says"),
    [
        (None, {**PLAIN, "rope_theta": 1e6}, []),
        (None, {**PLAIN, "rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}, ["rope_type is 'linear'"]),
        (None, {"rope_parameters": {"rope_theta": 500000.25}}, ["rope_theta is 500000.25, this job's ropeTheta is 500000"]),
        (LLAMA3, {**SCALED, "max_position_embeddings": 64}, []),
        (LLAMA3, {**SCALED, "max_position_embeddings": 65}, ["original_max_position_embeddings is 65, .* has 64"]),
        (LLAMA3, {**SCALED, "rope_scaling": LONG, "original_max_position_embeddings": 96, "max_position_embeddings": 96}, []),
        (LLAMA3, {**SCALED, "rope_scaling": LOW, "max_position_embeddings": 64}, ["high_freq_factor is None, .* has 2.5"]),
    ],
    ids=["plain", "both", "theta", "older", "longer", "beside", "lacking"],
)  # fmt: skip
def test_of_a_configs_rotations_the_one_counts_that_transformers_computes(scaling, changes, says):
    model = replace(MODEL, rope_theta=5e5, rope_scaling=scaling)
    others = {name: value for name, value in to_config(model, 64, 128).items() if "rope" not in name}
    found = list(differences({**others, **changes}, model))
    assert len(found) == len(says) and all(map(re.match, says, found))
