"""Whether mode Auto can choose any layout for a job's model and trainers: judged before a pod starts."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from coxswain.api.configure import model_config, parallel_config
from coxswain.api.field_errors import FieldError
from coxswain.api.memory_faults import OUT_OF_MEMORY
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.trainingjob import TrainingJobSpec
from coxswain.config import BatchConfig
from coxswain.cost.memory import Recompute
from coxswain.plan.strategy.kinds import held, kinds_of, memory_refusals, most
from coxswain.plan.strategy.machine import machine_of
from coxswain.plan.strategy.values import Kind, Machine

TOO_SMALL, NOT_SPLIT = "CapacityTooSmall", "CustomModelNotSplit"  # reasons of conditions

_LEAST_ROWS = 64  # of a vocabulary that follows a tokenizer
_MODES: tuple[Recompute, ...] = ("None", "Selective", "Full")


def auto_faults(spec: TrainingJobSpec, policy: ParallelismPolicySpec, under: str) -> list[FieldError]:
    """Every fault; `under` is the policy's place. The coordinator chooses among what is left, with the lengths of the mix."""
    if spec.model.custom:
        message = "mode Auto needs to know how the model can be shared, and one of your own is whole on each device"
        return [FieldError(f"{under}.mode", message, "Auto", "Fixed", "set mode: Fixed", reason=NOT_SPLIT)]
    machine = machine_at_minimum(spec, policy)
    usable = kinds_that_fit(machine, policy.recompute)
    return _longest(spec, machine, usable) if usable else [_no_memory(spec, machine, policy, under)]


def machine_at_minimum(spec: TrainingJobSpec, policy: ParallelismPolicySpec) -> Machine:
    """With the least trainers that the job runs with."""
    model, trainers = model_config(spec.model), spec.trainers
    batch = BatchConfig(tokens_per_step=spec.batch.tokens_per_step, max_sequence_tokens=spec.batch.max_sequence_tokens)
    devices = (trainers.devices_per_trainer,) * (trainers.min_count or trainers.count)
    model = replace(model, vocabulary=model.vocabulary or _LEAST_ROWS)
    return machine_of(
        model, parallel_config(policy), batch, devices, whole_matrices=spec.optimizer.kind == "Muon",
        copies=spec.recovery.copies == "EveryStep",
    )  # fmt: skip


def kinds_that_fit(machine: Machine, recompute: Recompute) -> list[Kind]:
    kinds, _ = kinds_of(dataclasses.replace(machine, recompute=(recompute,)))
    return held(machine, kinds, [recompute])


def _no_memory(spec: TrainingJobSpec, machine: Machine, policy: ParallelismPolicySpec, under: str) -> FieldError:
    kinds, _ = kinds_of(machine)
    nearest = list(memory_refusals(machine, kinds, policy.recompute).values())[-1]
    message = f"no replica of {machine.devices} devices fits: of the largest, {nearest.summary}, {nearest.why}"
    milder = [mode for mode in _MODES[_MODES.index(policy.recompute) + 1 :] if kinds_that_fit(machine, mode)]
    ways = [f"set recompute: {milder[0]}"] if milder else []
    moving = machine_at_minimum(spec, policy.model_copy(update={"offload": "Auto"}))
    ways += ["set offload: Auto"] if policy.offload == "Off" and kinds_that_fit(moving, policy.recompute) else []
    way_out = " or ".join([*ways, "use more trainers, devices with more memory, or fewer hybridData.tokensPerReplica"])
    return FieldError(f"{under}.hardware", message, policy.hardware, way_out=way_out, reason=OUT_OF_MEMORY)


def _longest(spec: TrainingJobSpec, machine: Machine, usable: list[Kind]) -> list[FieldError]:
    """Whether the most replicas that the devices make of a kind that fits hold the longest sequence."""
    longest = spec.batch.max_sequence_tokens
    kind = max(usable, key=lambda kind: most(machine, kind))
    held = machine.capacity * min(machine.max_degree, most(machine, kind))
    if longest <= held:
        return []
    message = (
        f"a sequence of {longest} tokens does not fit: {machine.devices} devices at minCount make {most(machine, kind)} "
        f"replicas of {kind.name}, the smallest that memory allows, which hold {held} tokens"
    )
    way_out = "lower batch.maxSequenceTokens, or raise tokensPerReplica, maxDegree or trainers.minCount"
    return [
        FieldError("spec.batch.maxSequenceTokens", message, str(longest), f"at most {held}", way_out, reason=TOO_SMALL)
    ]
