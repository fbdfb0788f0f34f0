"""Whether a job's replicas fit into the memory of their devices: judged before a pod starts, with what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any

from coxswain.api.configure import model_config, parallel_config
from coxswain.api.field_errors import FieldError
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.trainingjob import TrainingJobSpec
from coxswain.config import JobConfig, ModelConfig, ParallelConfig
from coxswain.cost.constants import device_memory
from coxswain.cost.memory import MASTER, RESERVED, Peak, Shares, Spot, Workload, spots_of
from coxswain.cost.offload import least_share
from coxswain.layout import Device, Layout, layout_for
from coxswain.models import parameter_specs

OUT_OF_MEMORY = "MemoryTooSmall"  # reason of a condition

_BF16 = 2
_LEAST_ROWS = 64  # of a vocabulary that follows a tokenizer: more of them need more memory
_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_GIB = 2**30

Accepts = Callable[[ParallelismPolicySpec], bool]
Place = tuple[int, int, int]  # replica, stage, tensor rank
Fullest = tuple[Place, Peak]


def memory_faults(
    spec: TrainingJobSpec, policy: ParallelismPolicySpec, under: str, accepts: Accepts
) -> list[FieldError]:
    """`accepts`: whether another policy has no fault of its layout. Without GPUs nothing is judged: any memory may be there.

    Nor is a model of the user's own, whose parameters only its class knows.
    """
    limit = 0 if spec.model.custom else device_memory(policy.hardware)
    found = largest(spec, policy) if limit else None
    if found is None or found[1].total + RESERVED <= limit:
        return []
    (replica, stage, tensor), peak = found
    message = (
        f"replica {replica}, stage {stage}, tensor rank {tensor} needs {_gib(peak.total)} "
        f"({_parts(peak)}), and {_gib(RESERVED)} beside tensors; a device of {policy.hardware} has {_gib(limit)}"
    )
    outs = list(ways_out(spec, policy, limit, accepts))
    way_out = f"set {' or '.join(outs)}" if outs else "use devices with more memory, more trainers, or a smaller model"
    value, allowed = _gib(peak.total + RESERVED), f"at most {_gib(limit)}"
    return [FieldError(f"{under}.hardware", message, value, allowed, way_out, reason=OUT_OF_MEMORY)]


def largest(spec: TrainingJobSpec, policy: ParallelismPolicySpec) -> Fullest | None:
    trainers = spec.trainers.min_count or spec.trainers.count
    tokens = spec.batch.tokens_per_step + spec.batch.max_sequence_tokens
    model, parallel = model_config(spec.model), parallel_config(policy)
    copies = spec.recovery.copies == "EveryStep"
    return fullest(model, parallel, tokens, trainers, spec.trainers.devices_per_trainer, copies)


@lru_cache(maxsize=1024)  # the operator judges each job at every pass
def fullest(
    model: ModelConfig, parallel: ParallelConfig, tokens: int, trainers: int, each: int, copies: bool
) -> Fullest | None:
    """The place that needs most memory; None: the trainers, of `each` devices, make no replica. `tokens`: of a step, at most."""
    rows = model.vocabulary or _LEAST_ROWS
    work = Workload(
        _BF16, min(parallel.tokens_per_replica, tokens), parallel.recompute,
        least_share(model, parallel, rows, parallel.recompute), parallel.attention != "Ring", copies and trainers > 1,
    )  # fmt: skip
    spots, owners = _spots(model, shape_of(parallel), trainers, each, copies)
    found = ((place, spot.peak(owners, work)) for place, spot in spots)
    return max(found, key=lambda item: item[1].total, default=None)


def shape_of(parallel: ParallelConfig) -> ParallelConfig:
    """What decides about the places of a layout: policies that differ in other fields only have the same."""
    return ParallelConfig(tensor=parallel.tensor, pipeline=parallel.pipeline, layout=parallel.layout)


@lru_cache(maxsize=256)
def _spots(
    model: ModelConfig, shape: ParallelConfig, trainers: int, each: int, copies: bool
) -> tuple[tuple[tuple[Place, Spot], ...], int]:
    """What differs among the ranks, each with the first rank that has it; and the replicas that share the optimizer's state."""
    layout, replicas = _layout(model, shape, trainers, each, copies)
    first = dict[Spot, Place]()
    for seat, spot in zip(layout.ranks(), spots_of(_shares(model), layout, copies and trainers > 1), strict=True):
        first.setdefault(spot, (seat.replica, seat.stage, seat.tensor))
    return tuple((place, spot) for spot, place in first.items()), replicas


@lru_cache(maxsize=8)
def _shares(model: ModelConfig) -> Shares:
    return Shares(model, parameter_specs(model, model.vocabulary or _LEAST_ROWS))


@lru_cache(maxsize=4)  # of thousands of devices each
def laid_out(shape: ParallelConfig, layers: int, trainers: int, each: int) -> Layout:
    """The layout on the first so many trainers."""
    return layout_for((Device(t, d) for t in range(trainers) for d in range(each)), layers, shape)


def _layout(model: ModelConfig, shape: ParallelConfig, trainers: int, each: int, copies: bool) -> tuple[Layout, int]:
    """The layout, and its replicas. Equal replicas stand for all of them: two are enough. With copies they fill two trainers
    besides: each rank's ward is then as many ranks before it as a trainer has devices, whatever follows.
    """
    enough = -(-2 * shape.least_devices // each) + (2 if copies else 1)
    few = touched(shape, trainers) if shape.layout else min(trainers, enough)
    layout = laid_out(shape, model.layers, few, each)
    whole = bool(shape.layout) or few == trainers
    return layout, len(layout.replicas) if whole else trainers * each // shape.least_devices


def touched(parallel: ParallelConfig, trainers: int) -> int:
    """The first so many trainers are enough for a layout: each stage takes its devices from the first one with enough left."""
    return min(trainers, sum(shape.count * len(shape.stages) for shape in parallel.layout))


def memory_note(job: JobConfig) -> str:
    """How full the fullest device is to be; nothing without GPUs, nor before mode Auto has chosen."""
    if job.model.custom or job.parallelism.mode == "Auto":
        return ""
    limit, tokens = device_memory(job.parallelism.hardware), job.batch.tokens_per_step + job.batch.max_sequence_tokens
    each, copies = job.devices_per_trainer, job.copies
    found = fullest(job.model, job.parallelism, tokens, job.min_trainers, each, copies) if limit else None
    if found is None:
        return ""
    (replica, stage, tensor), peak = found
    place = f"replica {replica}, stage {stage}, tensor rank {tensor}"
    return f"{_gib(peak.total)} of {_gib(limit)} on the fullest device ({place}): {_parts(peak)}"


def ways_out(spec: TrainingJobSpec, policy: ParallelismPolicySpec, limit: int, accepts: Accepts) -> Iterator[str]:
    """Changes of the policy with which the job fits, each computed: of one field where that is enough, else of several."""

    least = _least_bytes(model_config(spec.model))

    def fits(change: dict[str, Any]) -> bool:
        changed = policy.model_copy(update=change)
        even = 0 if changed.layout else least // (changed.tensor * changed.pipeline)
        if even + RESERVED > limit or not accepts(changed):
            return False
        found = largest(spec, changed)
        return found is not None and found[1].total + RESERVED <= limit

    single = [change for change in _single(policy) if change and fits(change)]
    yield from dict.fromkeys(_say(change) for change in _first_of_each(single))
    if (tokens := _fewer_tokens(policy, fits)) is not None:
        yield f"hybridData.tokensPerReplica at most {tokens}"
    elif not single and (both := next((change for change in _several(policy) if fits(change)), None)):
        yield _say(both)


def _least_bytes(model: ModelConfig) -> int:
    """Parameters and gradients of a whole replica. The fullest of its devices has an even share of them at least."""
    elements = sum(prod(spec.shape) for spec in parameter_specs(model, model.vocabulary or _LEAST_ROWS))
    return (_BF16 + MASTER) * elements


def _single(policy: ParallelismPolicySpec) -> Iterator[dict[str, Any]]:
    modes = ("None", "Selective", "Full")
    yield from ({"recompute": mode} for mode in modes[modes.index(policy.recompute) + 1 :])
    if policy.offload == "Off":
        yield {"offload": "Auto"}
    if policy.layout is None:
        yield from ({"tensor": degree} for degree in _DEGREES if degree > policy.tensor)
        yield from ({"pipeline": degree} for degree in _DEGREES if degree > policy.pipeline)


def _first_of_each(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mildest change of every field."""
    return list({next(iter(change)): change for change in reversed(changes)}.values())[::-1]


def _several(policy: ParallelismPolicySpec) -> Iterator[dict[str, Any]]:
    """Recompute and more devices a replica, the fewest first."""
    grid = [(t, p) for t in _DEGREES for p in _DEGREES if t >= policy.tensor and p >= policy.pipeline]
    for tensor, pipeline in (
        sorted(grid, key=lambda pair: (pair[0] * pair[1], pair[1])) if policy.layout is None else ()
    ):
        for mode in ("None", "Selective", "Full"):
            yield {"recompute": mode, "tensor": tensor, "pipeline": pipeline}


def _fewer_tokens(policy: ParallelismPolicySpec, fits: Callable[[dict[str, Any]], bool]) -> int | None:
    """The most tokens in steps of a sixteenth; memory grows evenly with them."""
    whole = policy.hybrid_data.tokens_per_replica
    for sixteenths in range(15, 0, -1):
        tokens = whole * sixteenths // 16
        if tokens and fits({"hybrid_data": policy.hybrid_data.model_copy(update={"tokens_per_replica": tokens})}):
            return tokens
    return None


def _say(change: dict[str, Any]) -> str:
    return " and ".join(f"{name}: {value}" for name, value in change.items())


def _parts(peak: Peak) -> str:
    if peak.activations + peak.transient >= peak.reduction:
        rest = {"activations": peak.activations, "the layer or loss at work": peak.transient}
    else:
        rest = {"their exchange": peak.reduction}
    named = {"parameters": peak.parameters, "gradients": peak.gradients, "optimizer": peak.optimizer} | rest
    return ", ".join(f"{name} {_gib(size)}" for name, size in named.items())


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
