"""ParallelismPolicy: how one model and one batch are spread over devices."""

from __future__ import annotations

from typing import Literal

from coxswain.api.common import Count, Degree, Model, Tokens


class HybridData(Model):
    """Hybrid data parallelism: data and context parallelism on one axis, each sequence with as many replicas as it needs."""

    tokens_per_replica: Tokens = 8192
    """Most tokens that one replica holds in one task (C of the design notes)."""
    max_degree: Count = 64
    """Most replicas that share one sequence."""
    balance: Literal["Makespan", "Naive", "Static"] = "Makespan"
    """How sequences are placed. Makespan: the last replica ends as early as possible, by the cost model. Naive and Static are
    there to compare with."""
    attention: Literal["Ring", "Ulysses", "Auto"] = "Ring"
    """How the replicas of one sequence share its attention. No effect yet: it is always Ring."""


class ParallelismPolicySpec(Model):
    """How work is spread."""

    mode: Literal["Fixed", "Auto"] = "Fixed"
    """Fixed: `tensor` and `pipeline` as given. Auto is to choose them from lengths, model and devices: no effect yet."""
    tensor: Degree = 1
    """Tensor-parallel degree: devices of one trainer that share each layer; it divides devicesPerTrainer. This release refuses
    more than 1."""
    pipeline: Degree = 1
    """Pipeline stages of a replica. This release refuses more than 1."""
    hybrid_data: HybridData = HybridData()
    """How sequences are spread over replicas."""
    offload: Literal["Auto", "Off"] = "Auto"
    """Auto is to move activations to host memory as far as the copy hides behind compute. No effect yet."""
    optimizer_sharding: Literal["ZeRO1"] = "ZeRO1"
    """How the optimizer's state is spread over the replicas. ZeRO1: each owns a part of it."""
    hardware: Literal["a100-40g", "a100-80g", "h100-80g", "cpu"] = "a100-80g"
    """Constants of the cost model. With cpu, trainers request no GPU."""
