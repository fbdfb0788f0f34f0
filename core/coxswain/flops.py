"""Model FLOPs of a step, and the share of the hardware's peak that they make (Chowdhery et al., arXiv 2204.02311, appendix B).

6 N a token for the products with N parameters, and 12 x layers x heads x head size x length for the scores and sums of
attention, forward and backward together. Attention counts as if it were not causal, and nothing that is computed twice
counts, so that the share compares with those that others publish. A token's length is that of its own sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from coxswain.config import ModelConfig
from coxswain.holdings import ParameterSpec
from coxswain.models import parameter_specs


def linear_flops(specs: Iterable[ParameterSpec]) -> int:
    """FLOPs a token of all parameters but an embedding that is only looked up: one at place `first`."""
    return 6 * sum(prod(spec.shape) for spec in specs if spec.place != "first")


def step_flops(model: ModelConfig, vocabulary: int, lengths: Iterable[int]) -> int:
    """Of the sequences of a step, in tokens. `vocabulary`: rows of the embedding."""
    linear = linear_flops(parameter_specs(model, vocabulary))
    attention = 12 * model.layers * model.heads * model.size_of_head
    return sum(s * (linear + attention * s) for s in lengths)


def utilisation(flops: float, seconds: float, devices: int, peak_tflops: float) -> float | None:
    """Share of the peak that `devices` reached over `seconds`; None where the hardware's peak is unknown."""
    available = seconds * devices * peak_tflops * 1e12
    return flops / available if available else None


def loss_layers(model: ModelConfig) -> float:
    """The last stage's head, in layers: by the elements of their matrices."""
    head = model.size_of_head
    layer = model.hidden * (2 * model.heads + 2 * model.kv_heads) * head + 3 * model.hidden * model.feed_forward
    return model.hidden * model.vocabulary / layer
