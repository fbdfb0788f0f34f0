"""What mode Auto chooses for: a job's model, batch and policy on the devices of its trainers. No numpy."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from coxswain.config import BatchConfig, ModelConfig, ParallelConfig
from coxswain.cost.constants import constants_for, device_memory
from coxswain.plan.strategy.values import Machine

_BF16, _FP32 = 2, 4


def machine_of(
    model: ModelConfig, parallel: ParallelConfig, batch: BatchConfig, devices: tuple[int, ...], *, whole_matrices: bool
) -> Machine:
    """`model`: with its vocabulary; `devices`: of each trainer; `whole_matrices`: whether the optimizer needs them."""
    return Machine(
        trainers=devices,
        model=model,
        constants=constants_for(parallel.hardware, model),
        capacity=min(parallel.tokens_per_replica, batch.tokens_per_step + batch.max_sequence_tokens),
        max_degree=parallel.max_degree,
        memory=device_memory(parallel.hardware),
        element=_FP32 if parallel.hardware == "cpu" else _BF16,
        recompute=(parallel.recompute,),
        whole_matrices=whole_matrices,
        longest=batch.max_sequence_tokens,
    )


def asked(machine: Machine, batch: BatchConfig, balance: str) -> str:
    """Hashes all that a strategy depends on besides the devices and the lengths of the mix."""
    model = replace(machine.model, preset="", init_from="")
    what = (
        model, batch, balance, machine.constants, machine.capacity, machine.max_degree, machine.memory, machine.recompute,
        machine.whole_matrices,
    )  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()
