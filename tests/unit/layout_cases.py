"""Clusters with slow devices, and small models, for tests of layouts."""

from __future__ import annotations

from coxswain.config import ModelConfig
from coxswain.plan.layouts.cluster import Cluster, DeviceState, Node
from coxswain.plan.layouts.costs import Costs, shape_of

DEAD = float("inf")
SMALL = ModelConfig(layers=5, hidden=4096, heads=32, kv_heads=8, feed_forward=11008, vocabulary=32000)
LARGE = shape_of("llama-70b")


def cluster_of(rows: list[list[float]], batch: int = 8, tensor: int = 8) -> Cluster:
    """A node for each row of slowdowns."""
    nodes = [Node(f"n{n}", tuple(DeviceState(None if x == DEAD else x) for x in row)) for n, row in enumerate(rows)]
    return Cluster(nodes=tuple(nodes), global_batch=batch, sequence=4096, max_tensor=tensor)


def costs_of(rows: list[list[float]], batch: int = 8, tensor: int = 8, model: ModelConfig = SMALL) -> Costs:
    return Costs(cluster_of(rows, batch, tensor), model)


def eight_nodes(slow: dict[tuple[int, int], float]) -> Costs:
    """llama-70b on 64 devices; `slow` by (node, device)."""
    rows = [[slow.get((n, d), 1.0) for d in range(8)] for n in range(8)]
    return costs_of(rows, batch=64, model=LARGE)
