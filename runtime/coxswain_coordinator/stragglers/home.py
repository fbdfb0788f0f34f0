"""The world that the ladder decides for, and how it differs from the one before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coxswain.config import JobConfig
from coxswain.layout import Device
from coxswain.planlog import Generation
from coxswain.wire import World
from coxswain_coordinator.capacity import devices_of


@dataclass(frozen=True, slots=True)
class Home:
    """The world that the ladder decides for. `nodes`: by device, where known. `lost`: devices that the job had and shall have."""

    record: Generation
    vocabulary: int
    nodes: Mapping[Device, str]
    lost: frozenset[Device]


def home_of(
    record: Generation, world: World, nodes: Sequence[str], unknown: Mapping[Device, float], lost: frozenset[Device]
) -> Home:
    """`nodes`: of each trainer. `unknown`: devices of which nothing is known, so not where they are either."""
    known = devices_of(record.layout) - set(unknown)
    return Home(record, world.vocabulary, {d: nodes[d.trainer] for d in known if nodes[d.trainer]}, lost)


def lost_devices(job: JobConfig, before: Home | None, record: Generation) -> frozenset[Device]:
    """What the job shall have, has not, and had. A new coordinator does not know what it had: all that it shall have."""
    trainers, each = record.size or job.trainers, job.devices_per_trainer
    whole = {Device(t, d) for t in range(trainers) for d in range(each)}
    had = devices_of(before.record.layout) | before.lost if before else whole
    return frozenset((whole & had) - devices_of(record.layout))


def kept_devices(before: Home | None, record: Generation) -> set[Device]:
    """Devices whose pods stay."""
    if before is None:
        return set()
    return {device for device in devices_of(record.layout) if pod_of(before.record, device) == pod_of(record, device)}


def seated_devices(before: Home | None, record: Generation) -> set[Device]:
    """Devices that were on standby and are no longer."""
    return set(before.record.layout.standby) - set(record.layout.standby) if before else set()


def pod_of(record: Generation, device: Device) -> str:
    """The pod of a device; empty: this world has none."""
    return record.trainers[device.trainer] if device.trainer < len(record.trainers) else ""
