"""What layouts a world may have after a loss: the replicas that are whole as they are, or the job's own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.ladder.options import settled, surviving
from coxswain.ladder.values import LEAST_GAIN, Speeds
from coxswain.layout import Layout
from coxswain.plan.layouts.costs import Costs
from coxswain_coordinator.capacity import capacity_fault, devices_of
from coxswain_coordinator.stragglers.offers import costs_now


def has_lost(before: Layout, size: int, there: Collection[int]) -> bool:
    """Whether a trainer of this layout is gone that a job of `size` trainers keeps. `there`: indices of present ones."""
    return any(device.trainer < size and device.trainer not in there for device in devices_of(before))


def seconds_of(costs: Costs, layout: Layout) -> float:
    """Of a step in this layout, by the cost model; infinite where a device lacks the memory."""
    draft = settled(costs, layout)
    return draft.seconds if draft else float("inf")


def after_loss(
    job: JobConfig, vocabulary: int, before: Layout, own: Layout, speeds: Speeds,
    hardware: Hardware | None = None, seconds: Callable[[Costs, Layout], float] = seconds_of,
) -> tuple[Layout, ...]:  # fmt: skip
    """Layouts of exactly the devices of `own`, the job's own layout for them; what the cost model predicts to be faster first.

    What moves nothing comes first where the other one gains less than that model's error. `before`: of the lost world.
    `speeds`: of slow devices that are there. `seconds`: of a step in a layout. `hardware`: the job's profile; None: as its
    policy says.
    """
    kept = surviving(before, devices_of(own))
    if kept is None or kept == own or capacity_fault(job, kept):
        return (own,)
    if capacity_fault(job, own):
        return (kept,)
    costs = costs_now(job, vocabulary, max(kept, own, key=lambda layout: len(layout.replicas)), speeds, hardware)
    stay, change = seconds(costs, kept), seconds(costs, own)
    if stay == float("inf"):
        return (own,)
    return (own, kept) if change < stay * (1 - LEAST_GAIN) else (kept, own)
