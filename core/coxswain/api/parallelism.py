"""ParallelismPolicy: how one model and one batch are spread over devices."""

from __future__ import annotations

from typing import Literal

from coxswain.api.common import Conditions, Count, Degree, Model, Tokens, Whole


class HybridData(Model):
    """Hybrid data parallelism: data and context parallelism on one axis, each sequence with as many replicas as it needs."""

    tokens_per_replica: Tokens = 8192
    """Tokens one replica holds in one task (C)."""
    max_degree: Count = 64
    """Most replicas for one sequence."""
    balance: Literal["Makespan", "Naive", "Static"] = "Makespan"
    """How tasks are placed: Makespan balances measured work; the others are there to compare with."""
    attention: Literal["Ring", "Ulysses", "Auto"] = "Ring"
    """How the replicas of one sequence share its attention."""


class ParallelismPolicySpec(Model):
    """How work is spread. A job reads it when an attempt starts; a change reaches a running job with its next attempt."""

    mode: Literal["Fixed", "Auto"] = "Fixed"
    """Fixed: `tensor` and `pipeline` as given. Auto: chosen from lengths, model and devices."""
    tensor: Degree = 1
    """Tensor-parallel degree: devices that share each layer. They are of one trainer, so it divides devicesPerTrainer."""
    pipeline: Degree = 1
    """Pipeline stages of a replica."""
    hybrid_data: HybridData = HybridData()
    """How sequences are spread over replicas."""
    offload: Literal["Auto", "Off"] = "Auto"
    """Auto: activations move to host memory as far as the copy hides behind compute."""
    optimizer_sharding: Literal["ZeRO1"] = "ZeRO1"
    """How optimizer state is spread over the replicas."""
    hardware: Literal["a100-40g", "a100-80g", "h100-80g", "cpu"] = "a100-80g"
    """Constants of the cost model."""


class ParallelismPolicyStatus(Model):
    """Whether the policy is usable."""

    observed_generation: Whole | None = None
    """metadata.generation that this status describes."""
    conditions: Conditions | None = None
    """Ready."""
