"""What a layout is planned for: nodes with devices, each so many times slower than a healthy one, and a step's work."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from coxswain.errors import Refused
from coxswain.structs import UNDECODABLE, prepare


class DeviceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`slowdown`: a healthy device computes this many times faster; None: the device is dead."""

    slowdown: float | None = 1.0


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bandwidth`: the part of its network's rate that the node has."""

    name: str
    devices: tuple[DeviceState, ...]
    bandwidth: float = 1.0


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """`global_batch` sequences a step, `micro_batch` of them at a time, of `sequence` tokens each.

    Tensor groups have at most `max_tensor` devices, all of one node.
    """

    nodes: tuple[Node, ...]
    global_batch: int
    micro_batch: int = 1
    sequence: int
    hardware: str = "a100-80g"
    max_tensor: int = 8
    recompute: Literal["None", "Selective", "Full"] = "Selective"
    copies: bool = False  # whether each device keeps a copy of another node's part of the optimizer's state

    @cached_property
    def slowdowns(self) -> tuple[tuple[float, ...], ...]:
        """By node and device; infinite for a dead one."""
        return tuple(
            tuple(float("inf") if d.slowdown is None else d.slowdown for d in node.devices) for node in self.nodes
        )

    @property
    def micro_batches(self) -> int:
        return self.global_batch // self.micro_batch

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def devices(self) -> int:
        return sum(len(node.devices) for node in self.nodes)

    @property
    def optimum_ratio(self) -> float:
        """No plan is faster than so many times the healthy step: device i does 1/x_i of a healthy one's work."""
        return self.devices / sum(1 / x for node in self.slowdowns for x in node)

    def with_slowdowns(self, slowdowns: list[list[float]]) -> Cluster:
        """Infinite: dead."""
        nodes = [
            Node(node.name, tuple(DeviceState(None if x == float("inf") else x) for x in row), node.bandwidth)
            for node, row in zip(self.nodes, slowdowns, strict=True)
        ]
        return msgspec.structs.replace(self, nodes=tuple(nodes))


def read_cluster(raw: bytes, where: str) -> Cluster:
    """Decodes and checks a cluster file. Raises Refused, which names the field."""
    try:
        cluster = msgspec.json.decode(raw, type=Cluster)
    except UNDECODABLE as error:
        raise Refused("BadCluster", f"{where}: {error}; see docs/design/layouts.md for the format") from None
    for message in _faults(cluster):
        raise Refused("BadCluster", f"{where}: {message}")
    return cluster


def _faults(cluster: Cluster) -> list[str]:
    """Numbers outside what is allowed."""
    counts = [(name, getattr(cluster, name)) for name in ("global_batch", "micro_batch", "sequence", "max_tensor")]
    found = [f"{name} is {value}; it must be at least 1" for name, value in counts if value < 1]
    if not found and cluster.global_batch % cluster.micro_batch:
        found = [f"global_batch is {cluster.global_batch}; it must be a multiple of micro_batch {cluster.micro_batch}"]
    names = [node.name for node in cluster.nodes]
    found += [f"nodes: {n!r} stands twice; give each node a name of its own" for n in names if names.count(n) > 1]
    for node in cluster.nodes:
        if not 0 < node.bandwidth <= 1:
            found.append(f"node {node.name!r}: bandwidth is {node.bandwidth}; it must be above 0 and at most 1")
        found += [
            f"node {node.name!r}, device {i}: slowdown is {d.slowdown}; it must be at least 1, or null for a dead device"
            for i, d in enumerate(node.devices)
            if d.slowdown is not None and not 1 <= d.slowdown < float("inf")
        ]
    return found or ([] if _alive(cluster) else ["no device is alive; give at least one a slowdown"])


def _alive(cluster: Cluster) -> bool:
    return any(d.slowdown is not None for node in cluster.nodes for d in node.devices)


prepare(__name__)
