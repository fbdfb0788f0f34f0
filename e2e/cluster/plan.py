"""What a cluster is called and which addresses it has: decided once, before anything is made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

CLUSTER_DNS = "10.96.0.10"
_CANDIDATES = [IPv4Network(f"10.{second}.0.0/16") for second in (99, 98, 97, 95, 94, 93)]


class NoRangeFree(Exception):
    """Every range that a cluster could use overlaps a route of this machine."""


class Plan(msgspec.Struct, frozen=True):
    """One cluster.

    Its /16 holds the nodes in the first /24, a /24 of pods for each node, and the link to the
    machine.
    """

    name: str
    """Prefix of everything visible on the machine: the link, the cgroups."""
    network: str
    nodes: list[str]

    def _address(self, third: int, fourth: int) -> str:
        return str(IPv4Network(self.network)[third * 256 + fourth])

    @property
    def control_plane(self) -> str:
        return self._address(0, 1)

    @property
    def pods(self) -> str:
        """The range of all pods (kube-proxy masquerades what enters from elsewhere)."""
        return str(list(IPv4Network(self.network).subnets(1))[1])

    @property
    def machine(self) -> str:
        """This machine, as pods and nodes see it."""
        return self._address(1, 1)

    @property
    def gateway(self) -> str:
        """The cluster's end of the link to the machine."""
        return self._address(1, 2)

    def node_address(self, node: str) -> str:
        return self._address(0, 10 + self.nodes.index(node))

    def pods_of(self, node: str) -> str:
        return f"{self._address(128 + self.nodes.index(node), 0)}/24"

    def cgroup_of(self, node: str) -> str:
        return f"{self.name}/{node}"


def make_plan(state: Path, nodes: int, routes: Iterable[str]) -> Plan:
    """The plan for a cluster kept in `state`, beside the machine's `routes` (destinations in CIDR
    form).
    """
    digest = hashlib.sha256(str(state).encode()).hexdigest()[:6]
    return Plan(f"coxswain{digest}", str(free_range(routes)), [f"node-{index}" for index in range(nodes)])


def free_range(routes: Iterable[str]) -> IPv4Network:
    """The first candidate that no route but the default one leads to. Raises NoRangeFree."""
    taken = [IPv4Network(route, strict=False) for route in routes if route != "default"]
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(network) for network in taken if network.prefixlen):
            return candidate
    names = ", ".join(map(str, _CANDIDATES))
    raise NoRangeFree(f"a cluster needs one of {names}, and routes of this machine overlap each: remove one of those")
