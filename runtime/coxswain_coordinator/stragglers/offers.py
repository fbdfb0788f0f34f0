"""What the layout planner offers a running job: only layouts that its engine runs. It takes CPU seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite

from msgspec.structs import replace as with_fields

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.ladder.options import at_speeds, options_for, without_slow
from coxswain.ladder.values import LEAST_GAIN, Options, Speeds
from coxswain.layout import Device, Layout, capacities_of
from coxswain.plan.layouts.cluster import Cluster, DeviceState, Node
from coxswain.plan.layouts.costs import Costs
from coxswain_coordinator.capacity import capacity_fault, devices_of

_LEAST = 4  # micro-batches of a replica: plans deal tokens more finely than the layout planner deals micro-batches


def offers(
    job: JobConfig, vocabulary: int, layout: Layout, speeds: Speeds, least_gain: float = LEAST_GAIN,
    hardware: Hardware | None = None,
) -> Options:  # fmt: skip
    """Options from this layout at these speeds; those of lost devices are 0. Raises Refused where no layout fits.

    `hardware`: the job's profile; None: as its policy says.
    """
    costs = costs_of(job, vocabulary, layout, speeds, hardware)
    all_speeds = _with_missing(costs, layout, speeds)
    found = options_for(costs, layout, all_speeds, least_gain=least_gain)
    now = at_speeds(costs, all_speeds)
    aside = without_slow(now, layout, all_speeds, found.stay) if isfinite(found.stay) else []
    fit = tuple(o for o in (*found.layouts, *aside) if runs(job, layout, o.layout))
    return replace(found, speeds=dict(speeds), layouts=fit)


def costs_now(
    job: JobConfig, vocabulary: int, layout: Layout, speeds: Speeds, hardware: Hardware | None = None
) -> Costs:
    """Of the layout's devices, at these speeds."""
    costs = costs_of(job, vocabulary, layout, speeds, hardware)
    return at_speeds(costs, _with_missing(costs, layout, speeds))


def _with_missing(costs: Costs, layout: Layout, speeds: Speeds) -> dict[Device, float]:
    """A device of the cluster that is not in the layout is not there."""
    rows = costs.cluster.nodes
    every = {Device(n, d) for n, node in enumerate(rows) for d in range(len(node.devices))}
    return {**speeds, **dict.fromkeys(every - devices_of(layout), 0.0)}


def costs_of(
    job: JobConfig, vocabulary: int, layout: Layout, others: Iterable[Device] = (), hardware: Hardware | None = None
) -> Costs:
    """Of the trainers up to the last one of the layout and of the other devices, all at speed 1; trainers are nodes."""
    parallel, each = job.parallelism, job.devices_per_trainer
    trainers = 1 + max(d.trainer for d in (*devices_of(layout), *others))
    capacity = min(*capacities_of(layout, parallel), job.batch.tokens_per_step)
    cluster = Cluster(
        nodes=tuple(Node(f"trainer-{n}", (DeviceState(),) * each) for n in range(trainers)),
        global_batch=max(-(-job.batch.tokens_per_step // capacity), _LEAST * len(layout.replicas)),
        sequence=capacity, hardware=parallel.hardware, recompute=parallel.recompute,
        max_tensor=1 if job.optimizer.kind == "Muon" or job.model.custom else each, copies=job.copies,
    )  # fmt: skip
    return Costs(cluster, with_fields(job.model, vocabulary=vocabulary), hardware)


def runs(job: JobConfig, now: Layout, layout: Layout) -> bool:
    """Whether it is another one that the engine runs on exactly the present devices, and the longest sequence still fits."""
    stages = [stage for replica in layout.replicas for stage in replica.stages]
    whole = all(stage.devices and stage.start < stage.stop for stage in stages)
    if layout == now or not whole:
        return False
    if job.model.custom and len(stages) > len(layout.replicas):
        return False  # a model of the user's own is whole on each device
    return devices_of(layout) == devices_of(now) and not capacity_fault(job, layout)
