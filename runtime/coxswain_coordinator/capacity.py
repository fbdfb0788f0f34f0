"""What a layout has and holds. Pure."""

from __future__ import annotations

from coxswain.config import JobConfig
from coxswain.layout import Device, Layout


def capacity_fault(job: JobConfig, layout: Layout) -> str:
    """Why this layout cannot hold the longest sequence; empty when it can.

    The coordinator waits for more trainers then; the job does not fail.
    """
    parallel, longest = job.parallelism, job.batch.max_sequence_tokens
    if not layout.replicas:
        needed = parallel.least_devices
        return f"CapacityLost: {len(layout.standby)} devices, the layout needs {needed}; waiting for more trainers"
    usable = min(parallel.max_degree, layout.largest_ring())
    if usable * parallel.tokens_per_replica >= longest:
        return ""
    return (
        f"CapacityLost: {usable} replicas hold {usable * parallel.tokens_per_replica} tokens of one sequence, "
        f"batch.maxSequenceTokens is {longest}; waiting for more trainers"
    )


def devices_of(layout: Layout) -> set[Device]:
    """All of a layout, also those on standby."""
    working = {device for replica in layout.replicas for stage in replica.stages for device in stage.devices}
    return working | set(layout.standby)
