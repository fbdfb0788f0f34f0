"""The layout: replicas -> stages -> devices and layer ranges. Replicas may differ in all three."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from coxswain.config import ParallelConfig, ReplicaShape
from coxswain.structs import prepare


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

    def largest_ring(self) -> int:
        """The most replicas that one sequence may span: those of a ring have equal layer split and tensor degrees."""
        shapes = Counter(tuple((s.start, s.stop, len(s.devices)) for s in r.stages) for r in self.replicas)
        return max(shapes.values(), default=0)

    def summary(self) -> str:
        """Describes the layout: `3 x tp1pp2 + 1 x tp2/1pp2`; degrees by stage where they differ."""
        shapes = Counter(tuple(len(s.devices) for s in r.stages) for r in self.replicas)
        degrees = {shape: "/".join(map(str, shape if len(set(shape)) > 1 else shape[:1])) for shape in shapes}
        return " + ".join(f"{n} x tp{degrees[shape]}pp{len(shape)}" for shape, n in shapes.items())


class Seat(msgspec.Struct, frozen=True):
    """The place of one rank."""

    rank: int
    device: Device
    replica: int
    stage: int
    tensor: int


def loss_ranks(seats: Iterable[Seat]) -> frozenset[int]:
    """The rank of each replica that counts its losses and labels: tensor 0 of the last stage."""
    last: dict[int, Seat] = {}
    for seat in seats:
        if seat.tensor == 0 and (seat.replica not in last or seat.stage > last[seat.replica].stage):
            last[seat.replica] = seat
    return frozenset(seat.rank for seat in last.values())


def token_ranks(seats: Iterable[Seat]) -> frozenset[int]:
    """The rank of each replica that counts the tokens delivered to it: tensor 0 of the first stage."""
    return frozenset(seat.rank for seat in seats if seat.stage == seat.tensor == 0)


def layout_for(devices: Iterable[Device], layers: int, parallelism: ParallelConfig) -> Layout:
    """The job's layout on these devices, by trainer and device number; without replicas where they are too few."""
    mine = sorted(devices)
    if parallelism.layout:
        return shaped_layout(mine, parallelism.layout)
    return uniform_layout(mine, layers, parallelism.tensor, parallelism.pipeline)


def pipelines_of(stages: Sequence[int]) -> Layout:
    """Replicas of so many stages each, of one layer and one device."""
    known = {n: Replica(tuple(Stage((Device(0, s),), s, s + 1) for s in range(n))) for n in set(stages)}
    return Layout(tuple(known[n] for n in stages))


def capacities_of(layout: Layout, parallelism: ParallelConfig) -> list[int]:
    """Tokens of a task, by replica: those of its shape. One of a shape that the job does not name has the least of all."""
    shapes, most = parallelism.layout, parallelism.tokens_per_replica
    named = {tuple((s.layers, s.tensor) for s in shape.stages): shape.tokens or most for shape in shapes}
    least = min(named.values(), default=most)
    return [named.get(tuple((s.stop - s.start, len(s.devices)) for s in r.stages), least) for r in layout.replicas]


def longest_sequence(layout: Layout, parallelism: ParallelConfig) -> int:
    """Tokens of the longest sequence that equal replicas of this layout hold in one ring."""
    shapes = [tuple((s.start, s.stop, len(s.devices)) for s in r.stages) for r in layout.replicas]
    held = dict(zip(shapes, capacities_of(layout, parallelism), strict=True))
    rings = Counter(shapes).items()
    return max((min(parallelism.max_degree, number) * held[shape] for shape, number in rings), default=0)


def shaped_layout(devices: Sequence[Device], shapes: Iterable[ReplicaShape]) -> Layout:
    """Replicas of these shapes: each stage takes its devices from the first trainer that has enough left.

    Devices that are left over are on standby: all of them where the shapes do not fit.
    """
    free: dict[int, list[Device]] = defaultdict(list)
    for device in devices:
        free[device.trainer].append(device)
    homes, first, replicas = list(free.values()), defaultdict[int, int](int), []
    for wanted in (shape.stages for shape in shapes for _ in range(shape.count)):
        stages, start = [], 0
        for stage in wanted:
            first[stage.tensor] = place = _next_home(homes, first[stage.tensor], stage.tensor)
            if place == len(homes):
                return Layout(replicas=(), standby=tuple(devices))
            stages.append(Stage(tuple(homes[place][: stage.tensor]), start, start + stage.layers))
            del homes[place][: stage.tensor]
            start += stage.layers
        replicas.append(Replica(tuple(stages)))
    return Layout(replicas=tuple(replicas), standby=tuple(device for mine in homes for device in mine))


def has_shapes(layout: Layout, shapes: Iterable[ReplicaShape]) -> bool:
    """Whether the layout's replicas are of these shapes, on whatever devices."""
    wanted, found = Counter[tuple[tuple[int, int], ...]](), Counter[tuple[tuple[int, int], ...]]()
    for shape in shapes:
        wanted[tuple((stage.layers, stage.tensor) for stage in shape.stages)] += shape.count
    for replica in layout.replicas:
        found[tuple((stage.stop - stage.start, len(stage.devices)) for stage in replica.stages)] += 1
    return wanted == found


def _next_home(homes: Sequence[Sequence[Device]], first: int, wanted: int) -> int:
    """The first trainer from `first` on with so many devices left. Those before it will never have them again."""
    return next((place for place in range(first, len(homes)) if len(homes[place]) >= wanted), len(homes))


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


prepare(__name__)
