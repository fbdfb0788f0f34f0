"""Settings of parameters by name."""

import pytest

from coxswain.config import OptimizerConfig, ParameterGroupConfig
from coxswain.parameter_groups import Settings, settings_of

CONFIG = OptimizerConfig(
    learning_rate=1.0,
    weight_decay=0.1,
    groups=(
        ParameterGroupConfig(match="*.q_proj.*", learning_rate_scale=0.5),
        ParameterGroupConfig(match="*_proj.*", weight_decay=0.0),
        ParameterGroupConfig(match="model.norm.*", weight_decay=0.3),
    ),
)


@pytest.mark.parametrize(
    ("name", "dimensions", "expected"),
    [
        ("lm_head.weight", 2, Settings(1.0, 0.1)),
        ("model.layers.0.input_layernorm.weight", 1, Settings(1.0, 0.0)),
        ("model.layers.3.self_attn.q_proj.weight", 2, Settings(0.5, 0.1)),
        ("model.layers.3.self_attn.q_proj.bias", 1, Settings(0.5, 0.0)),
        ("model.layers.3.self_attn.k_proj.weight", 2, Settings(1.0, 0.0)),
        ("model.norm.weight", 1, Settings(1.0, 0.3)),
    ],
)
def test_the_first_group_that_matches_decides_and_norms_decay_only_by_a_group(name, dimensions, expected):
    assert settings_of(name, dimensions, CONFIG) == expected
