"""What a layout is planned for: nodes with devices, each so many times slower than a healthy one, and a step's work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import fsum
from typing import Literal

import msgspec

from coxswain.errors import Refused
from coxswain.structs import UNDECODABLE, prepare

MOST = {"global_batch": 100_000_000, "micro_batch": 1_000_000, "sequence": 1_000_000_000, "max_tensor": 1024}
"""Of a cluster file's numbers."""
MOST_TOKENS = 1_000_000_000  # of a micro-batch
MOST_MICRO_BATCHES = 100_000  # each is simulated
MOST_DEVICES, MOST_OF_NODE = 100_000, 1024  # a node's devices are cut into groups in every way
SLOWEST, LEAST_BANDWIDTH = 1e6, 1e-6


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
        return self.devices / fsum(1 / x for node in self.slowdowns for x in node)

    def with_slowdowns(self, slowdowns: Sequence[Sequence[float]]) -> Cluster:
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
    counts = [(name, getattr(cluster, name), most) for name, most in MOST.items()]
    found = [
        f"{name} is {value}; it must be at least 1 and at most {most}"
        for name, value, most in counts
        if not 1 <= value <= most
    ] or _batch_faults(cluster)
    names = Counter(node.name for node in cluster.nodes)
    found += [f"nodes: {name!r} stands twice; give each node a name of its own" for name, n in names.items() if n > 1]
    found += [fault for node in cluster.nodes for fault in _node_faults(node)]
    if cluster.devices > MOST_DEVICES:
        found.append(f"nodes: they have {cluster.devices} devices; at most {MOST_DEVICES} are planned for")
    return found or ([] if _alive(cluster) else ["no device is alive; give at least one a slowdown"])


def _batch_faults(cluster: Cluster) -> list[str]:
    if cluster.global_batch % cluster.micro_batch:
        return [f"global_batch is {cluster.global_batch}; it must be a multiple of micro_batch {cluster.micro_batch}"]
    if cluster.tokens > MOST_TOKENS:
        return [f"micro_batch x sequence is {cluster.tokens} tokens; it must be at most {MOST_TOKENS}"]
    if cluster.micro_batches > MOST_MICRO_BATCHES:
        most = f"at most {MOST_MICRO_BATCHES} are planned for; raise micro_batch"
        return [f"global_batch / micro_batch is {cluster.micro_batches} micro-batches; {most}"]
    return []


def _node_faults(node: Node) -> list[str]:
    found = []
    if not LEAST_BANDWIDTH <= node.bandwidth <= 1:
        form = f"it must be at least {LEAST_BANDWIDTH:g} and at most 1"
        found.append(f"node {node.name!r}: bandwidth is {node.bandwidth}; {form}")
    if len(node.devices) > MOST_OF_NODE:
        found.append(f"node {node.name!r}: it has {len(node.devices)} devices; a node has at most {MOST_OF_NODE}")
    form = f"it must be at least 1 and at most {SLOWEST:.0f}, or null for a dead device"
    return found + [
        f"node {node.name!r}, device {i}: slowdown is {d.slowdown}; {form}"
        for i, d in enumerate(node.devices)
        if d.slowdown is not None and not 1 <= d.slowdown <= SLOWEST
    ]


def _alive(cluster: Cluster) -> bool:
    return any(d.slowdown is not None for node in cluster.nodes for d in node.devices)


prepare(__name__)
