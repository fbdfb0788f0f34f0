"""What mode Auto chooses for: a job's model, batch and policy on the devices of its trainers. No numpy."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from coxswain.config import BatchConfig, ModelConfig, ParallelConfig
from coxswain.cost.constants import Hardware, constants_for, device_memory
from coxswain.cost.memory import Recompute
from coxswain.cost.offload import least_share
from coxswain.plan.strategy.values import Machine

_BF16, _FP32 = 2, 4


def machine_of(
    model: ModelConfig, parallel: ParallelConfig, batch: BatchConfig, devices: tuple[int, ...], *, whole_matrices: bool,
    copies: bool = False, least: int = 0, nodes: tuple[str, ...] = (), profile: Hardware | None = None,
) -> Machine:  # fmt: skip
    """`model`: with its vocabulary; `devices`, `nodes`: of each trainer; `whole_matrices`: whether the optimizer needs them;
    `profile`: the job's, by which seconds are counted instead of its policy's hardware; memory is that hardware's.

    `least`: tokens of a task that a kind of replicas may have at least where memory does not hold the policy's number. No task
    is larger than a step and its longest sequence.
    """
    capacity = min(parallel.tokens_per_replica, batch.tokens_per_step + batch.max_sequence_tokens)
    return Machine(
        trainers=devices,
        model=model,
        constants=constants_for(profile or parallel.hardware, model),
        capacity=capacity,
        max_degree=parallel.max_degree,
        least=least if least < capacity else 0,
        memory=device_memory(parallel.hardware),
        element=_FP32 if parallel.hardware == "cpu" else _BF16,
        recompute=(parallel.recompute,),
        whole_matrices=whole_matrices,
        longest=batch.max_sequence_tokens,
        offload=_offload(model, parallel, profile),
        attention=parallel.attention,
        copies=copies,
        nodes=nodes,
    )


def _offload(
    model: ModelConfig, parallel: ParallelConfig, profile: Hardware | None
) -> tuple[tuple[Recompute, float], ...]:
    shares = [(mode, least_share(model, parallel, model.vocabulary, mode, profile)) for mode in get_args(Recompute)]
    return tuple((mode, share) for mode, share in shares if share)


def asked(machine: Machine, batch: BatchConfig, balance: str) -> str:
    """Hashes all that a strategy depends on besides the devices and the lengths of the mix."""
    model = replace(machine.model, preset="", init_from="")
    what: tuple[Any, ...] = (
        model, batch, balance, machine.constants, machine.capacity, machine.max_degree, machine.memory, machine.recompute,
        machine.whole_matrices,
    )  # fmt: skip
    exchanges = machine.attention != "Ring"
    if machine.offload or exchanges or machine.copies:  # else the hash is that of earlier releases
        what = (*what, machine.offload, exchanges)
    if machine.copies or machine.attention == "Ulysses":
        what = (*what, machine.attention, machine.copies)
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()
