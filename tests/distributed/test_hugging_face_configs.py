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


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
LOW = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0.5}
SCALED = {"rope_theta": 5e5, "rope_scaling": {**LOW, "high_freq_factor": 2.5}}


@pytest.mark.parametrize(
    ("scaling", "changes", "says"),
    [
        (None, {**PLAIN, "rope_theta": 1e6}, []),
        (None, {**PLAIN, "rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}, ["rope_type is 'linear'"]),
        (None, {"rope_parameters": {"rope_theta": 500000.25}}, ["rope_theta is 500000.25, this job's ropeTheta is 500000"]),
        (LLAMA3, {**SCALED, "max_position_embeddings": 64}, []),
        (LLAMA3, {**SCALED, "max_position_embeddings": 65}, ["original_max_position_embeddings is 65, .* has 64"]),
        (LLAMA3, {**SCALED, "rope_scaling": LOW, "max_position_embeddings": 64}, ["high_freq_factor is None, .* has 2.5"]),
    ],
    ids=["plain", "both", "theta", "older", "longer", "lacking"],
)  # fmt: skip
def test_of_a_configs_rotations_the_one_counts_that_transformers_computes(scaling, changes, says):
    model = replace(MODEL, rope_theta=5e5, rope_scaling=scaling)
    others = {name: value for name, value in to_config(model, 64, 128).items() if "rope" not in name}
    found = list(differences({**others, **changes}, model))
    assert len(found) == len(says) and all(map(re.match, says, found))
