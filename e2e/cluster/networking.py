"""Lines for `ip -batch`: how machine, control plane and nodes are connected.

    machine ── link ── [cluster: bridge] ── eth0 [node-0] ── pods
                                        └── eth0 [node-1] ── pods

The brackets are network namespaces, so the machine sees one link and one route, and both go with
the namespace.
"""

from __future__ import annotations

from e2e.cluster.plan import Plan

BRIDGE = "nodes"


def machine_lines(plan: Plan, cluster_pid: int) -> list[str]:
    """On the machine: one end of the link and the way to everything behind it."""
    return [
        f"link add name {plan.name} type veth peer name machine netns {cluster_pid}",
        f"address add {plan.machine}/30 dev {plan.name}",
        f"link set {plan.name} up",
    ]


def machine_route(plan: Plan) -> str:
    return f"route add {plan.network} via {plan.gateway} dev {plan.name}"


def cluster_lines(plan: Plan) -> list[str]:
    """In the cluster's namespace: the other end, and the bridge that the control plane listens on."""
    return [
        "link set lo up",
        f"address add {plan.gateway}/30 dev machine",
        "link set machine up",
        f"link add name {BRIDGE} type bridge",
        f"address add {plan.control_plane}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]


def joining_lines(plan: Plan, node: str, node_pid: int) -> list[str]:
    """In the cluster's namespace: a port on the bridge for the node, and the way to its pods."""
    return [
        f"link add name {node} type veth peer name eth0 netns {node_pid}",
        f"link set {node} master {BRIDGE}",
        f"link set {node} up",
        f"route replace {plan.pods_of(node)} via {plan.node_address(node)}",
    ]


def node_lines(plan: Plan, node: str) -> list[str]:
    """In the node's namespace: its address, and the ways to the other nodes' pods."""
    others = [other for other in plan.nodes if other != node]
    return [
        "link set lo up",
        f"address add {plan.node_address(node)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.control_plane}",
        *(f"route add {plan.pods_of(other)} via {plan.node_address(other)}" for other in others),
    ]
