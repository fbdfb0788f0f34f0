"""ParallelismPolicy: how one model and one batch are spread over devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coxswain.api.common import ATOMIC, MAX_ITEMS, Count, Degree, Model, Tokens, Uri


class HybridData(Model):
    """Hybrid data parallelism: data and context parallelism on one axis, each sequence with as many replicas as it needs."""

    tokens_per_replica: Tokens = 8192
    """Most tokens that one replica holds in one task (C of the design notes)."""
    max_degree: Count = 64
    """Most replicas that share one sequence."""
    balance: Literal["Makespan", "Naive", "Static", "ByteScale", "Waves", "WLB", "KK", "FlexSP", "Hydraulis"] = (
        "Makespan"
    )
    """How sequences are placed. Makespan: the last replica ends as early as possible, by the cost model. The others are there to
    compare with. FlexSP and Hydraulis solve integer programs: Makespan places the steps that they have not placed in time."""
    attention: Literal["Ring", "Ulysses", "Auto"] = "Ring"
    """How the replicas of one sequence share its attention. Ring: keys and values travel round all of them. Ulysses: neighbours
    exchange heads for tokens, as many of them as the key heads of a device and the ring's degree allow, at most 8; keys and
    values travel round what remains. Auto: whichever of these is faster by the cost model, ring by ring."""


class StageShape(Model):
    """One pipeline stage of a replica."""

    layers: Annotated[int, Field(ge=1, le=1024)]
    """How many consecutive layers it has; those of a replica's stages add up to the model's."""
    tensor: Degree = 1
    """Tensor-parallel degree: devices of one trainer that share each of these layers."""


class ReplicaShape(Model):
    """Replicas with the same stages."""

    count: Count = 1
    """How many replicas have these stages."""
    stages: Annotated[list[StageShape], Field(min_length=1, max_length=MAX_ITEMS, json_schema_extra=ATOMIC)]
    """The stages in the order of the layers."""


class LayoutShape(Model):
    """The stages of every replica."""

    replicas: Annotated[list[ReplicaShape], Field(min_length=1, max_length=MAX_ITEMS, json_schema_extra=ATOMIC)]
    """The replicas. Each stage takes its devices from the first trainer with enough of them left, by device number."""


class Profile(Model):
    """Rates that were measured on devices like the job's."""

    uri: Uri
    """A hardware file of `python -m coxswain_train.profile`, read with the checkpoint's endpoint when the job starts. Where a
    cluster has several classes of nodes, a policy for each names the profile of its class."""


class ParallelismPolicySpec(Model):
    """How work is spread."""

    mode: Literal["Fixed", "Auto"] = "Fixed"
    """Fixed: `tensor` and `pipeline`, or `layout`, as given. Auto chooses them at the start, from the mix's lengths, the model
    and the devices, and keeps them until the devices or the policy change; event StrategyChosen and `status.strategy` name
    them."""
    tensor: Degree = 1
    """Tensor-parallel degree: devices of one trainer that share each layer. It divides devicesPerTrainer, and the model's heads,
    feedForward and vocabulary; it divides kvHeads, or is a multiple of them."""
    pipeline: Degree = 1
    """Pipeline stages of a replica, at most as many as the model has layers. A replica has tensor x pipeline devices."""
    layout: LayoutShape | None = None
    """The stages of each replica, where replicas differ; `tensor` and `pipeline` are then left out. Devices that are left over
    stand by. Empty: equal replicas of `tensor` x `pipeline` devices, as many as the devices make."""
    hybrid_data: HybridData = HybridData()
    """How sequences are spread over replicas."""
    recompute: Literal["None", "Selective", "Full"] = "None"
    """What layers compute again in backward instead of keeping it. Selective: all but attention. Full: all; rings then repeat
    their hops. Gradients stay the same, bit for bit."""
    offload: Literal["Auto", "Off"] = "Off"
    """Auto moves activations to host memory as far as the copy hides behind compute. Without GPUs it has nothing to move to, and
    moves nothing."""
    optimizer_sharding: Literal["ZeRO1"] = "ZeRO1"
    """How the optimizer's state is spread over the replicas. ZeRO1: each owns a part of it."""
    hardware: Literal["a100-40g", "a100-80g", "h100-80g", "h200-141g", "cpu"] = "a100-80g"
    """Constants of the cost model. With cpu, trainers request no GPU."""
    profile: Profile | None = None
    """Measured rates, which plans go by instead of those of `hardware`. Empty: there are none."""
