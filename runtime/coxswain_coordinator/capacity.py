"""What a layout has and holds. Pure."""

from __future__ import annotations

from functools import lru_cache

from coxswain.config import JobConfig, ModelConfig, OptimizerConfig
from coxswain.cost.change import change_peak
from coxswain.cost.constants import device_memory
from coxswain.cost.memory import RESERVED
from coxswain.layout import Device, Layout, longest_sequence
from coxswain.models import parameter_specs
from coxswain.parameter_groups import muon_matrices

_BF16, _GIB = 2, 2**30
_LEAST_ROWS = 64  # of a vocabulary that follows a tokenizer


def capacity_fault(job: JobConfig, layout: Layout) -> str:
    """Why this layout cannot hold the longest sequence; empty when it can.

    The coordinator waits for more trainers then; the job does not fail.
    """
    parallel, longest = job.parallelism, job.batch.max_sequence_tokens
    if not layout.replicas:
        needed = parallel.least_devices
        return f"CapacityLost: {len(layout.standby)} devices, the layout needs {needed}; waiting for more trainers"
    usable, held = min(parallel.max_degree, layout.largest_ring()), longest_sequence(layout, parallel)
    if held >= longest:
        return ""
    return (
        f"CapacityLost: {usable} replicas hold {held} tokens of one sequence, "
        f"batch.maxSequenceTokens is {longest}; waiting for more trainers"
    )


def change_fault(job: JobConfig, before: Layout, after: Layout, nodes: tuple[str, ...] = ()) -> str:
    """Why a device cannot hold the state of both layouts until all have swapped; empty when all can. `nodes`: of each trainer,
    as far as they are known.

    The change then goes through a checkpoint. Without GPUs nothing is judged, nor is a model of the user's own.
    """
    limit, model = device_memory(job.parallelism.hardware), job.model
    if not limit or model.custom or not after.replicas:
        return ""
    device, size = _fullest(model, job.optimizer, before, after, job.copies, nodes)
    if size + RESERVED <= limit:
        return ""
    return (
        f"MemoryTooSmall: {device_name(device)} would hold {size / _GIB:.1f} GiB of the state of "
        f"both layouts at a time, and {RESERVED / _GIB:.1f} GiB beside tensors; a device of {job.parallelism.hardware} has "
        f"{limit / _GIB:.1f} GiB"
    )


@lru_cache(maxsize=8)  # a change is judged again and again until it is decided
def _fullest(
    model: ModelConfig, optimizer: OptimizerConfig, before: Layout, after: Layout, copies: bool, nodes: tuple[str, ...]
) -> tuple[Device, int]:
    specs = parameter_specs(model, model.vocabulary or _LEAST_ROWS)
    return change_peak(specs, model.layers, before, after, _BF16, copies, muon_matrices(specs, optimizer), nodes)


def device_name(device: Device) -> str:
    """As people read it."""
    return f"trainer-{device.trainer} device {device.device}"


def devices_of(layout: Layout) -> set[Device]:
    """All of a layout, also those on standby."""
    working = {device for replica in layout.replicas for stage in replica.stages for device in stage.devices}
    return working | set(layout.standby)
