"""What the layout planner offers a running job: only layouts that its engine runs. It takes CPU seconds. Pure."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as with_fields

from coxswain.config import JobConfig
from coxswain.ladder.options import options_for
from coxswain.ladder.values import Options, Speeds
from coxswain.layout import Layout
from coxswain.plan.layouts.cluster import Cluster, DeviceState, Node
from coxswain.plan.layouts.costs import Costs
from coxswain_coordinator.capacity import capacity_fault, devices_of

_LEAST = 4  # micro-batches of a replica: plans deal tokens more finely than the layout planner deals micro-batches


def offers(job: JobConfig, vocabulary: int, layout: Layout, speeds: Speeds) -> Options:
    """Options from this layout at these speeds. Raises Refused where no layout fits."""
    found = options_for(costs_of(job, vocabulary, layout), layout, speeds)
    return replace(found, layouts=tuple(o for o in found.layouts if runs(job, layout, o.layout)))


def is_whole(layout: Layout) -> bool:
    """Whether no trainer up to the last one is missing, and all have as many devices: the planner knows only those."""
    devices = devices_of(layout)
    trainers, each = 1 + max(d.trainer for d in devices), 1 + max(d.device for d in devices)
    return len(devices) == trainers * each


def costs_of(job: JobConfig, vocabulary: int, layout: Layout) -> Costs:
    """Of the layout's devices, all at speed 1; trainers are nodes."""
    devices, parallel = devices_of(layout), job.parallelism
    each = 1 + max(d.device for d in devices)
    capacity = min(parallel.tokens_per_replica, job.batch.tokens_per_step)
    cluster = Cluster(
        nodes=tuple(Node(f"trainer-{n}", (DeviceState(),) * each) for n in range(len(devices) // each)),
        global_batch=max(-(-job.batch.tokens_per_step // capacity), _LEAST * len(layout.replicas)),
        sequence=capacity, hardware=parallel.hardware, recompute=parallel.recompute,
        max_tensor=1 if job.optimizer.kind == "Muon" or job.model.custom else each, copies=job.copies,
    )  # fmt: skip
    return Costs(cluster, with_fields(job.model, vocabulary=vocabulary))


def runs(job: JobConfig, now: Layout, layout: Layout) -> bool:
    """Whether the engine runs it on exactly the present devices, and the longest sequence still fits."""
    stages = [stage for replica in layout.replicas for stage in replica.stages]
    whole = all(stage.devices and stage.start < stage.stop for stage in stages)
    if job.model.custom and len(stages) > len(layout.replicas):
        return False  # a model of the user's own is whole on each device
    return whole and devices_of(layout) == devices_of(now) and not capacity_fault(job, layout)
