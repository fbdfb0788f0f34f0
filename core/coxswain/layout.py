"""The layout: replicas -> stages -> devices and layer ranges. Replicas may differ in all three."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import msgspec


class Device(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One accelerator or CPU slot: the `device`-th of trainer `trainer`."""

    trainer: int
    device: int


class Stage(msgspec.Struct, frozen=True):
    """Layers [start, stop) on one tensor-parallel group of devices.

    The first stage also holds the embedding, the last one the head.
    """

    devices: tuple[Device, ...]
    start: int
    stop: int


class Replica(msgspec.Struct, frozen=True):
    """One complete copy of the model: a pipeline of stages."""

    stages: tuple[Stage, ...]


class Layout(msgspec.Struct, frozen=True):
    """All replicas, and the devices on standby."""

    replicas: tuple[Replica, ...]
    standby: tuple[Device, ...] = ()

    def ranks(self) -> tuple[Seat, ...]:
        """Returns seats by rank: by replica, then stage, then position in the tensor group."""
        return tuple(self._seats())

    def _seats(self) -> Iterator[Seat]:
        rank = 0
        for r, replica in enumerate(self.replicas):
            for s, stage in enumerate(replica.stages):
                for t, device in enumerate(stage.devices):
                    yield Seat(rank=rank, device=device, replica=r, stage=s, tensor=t)
                    rank += 1

    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def summary(self) -> str:
        """Describes the layout: `3 x tp1pp2 + 1 x tp1pp1`."""
        shapes = Counter((max(len(s.devices) for s in r.stages), len(r.stages)) for r in self.replicas)
        return " + ".join(f"{n} x tp{tp}pp{pp}" for (tp, pp), n in shapes.items())


class Seat(msgspec.Struct, frozen=True):
    """The place of one rank."""

    rank: int
    device: Device
    replica: int
    stage: int
    tensor: int


def uniform_layout(devices: list[Device], layers: int, tensor: int = 1, pipeline: int = 1) -> Layout:
    """Makes equal replicas of `tensor` x `pipeline` devices, with layers split evenly.

    Devices that fill no replica are on standby.
    """
    per_replica = tensor * pipeline
    count = len(devices) // per_replica
    cuts = [layers * s // pipeline for s in range(pipeline + 1)]
    replicas = []
    for r in range(count):
        mine = devices[r * per_replica : (r + 1) * per_replica]
        stages = tuple(
            Stage(devices=tuple(mine[s * tensor : (s + 1) * tensor]), start=cuts[s], stop=cuts[s + 1])
            for s in range(pipeline)
        )
        replicas.append(Replica(stages=stages))
    return Layout(replicas=tuple(replicas), standby=tuple(devices[count * per_replica :]))
