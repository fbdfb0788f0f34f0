"""Which rings of a plan exchange heads, among how many neighbours, and what such a ring takes (`cost/ulysses.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from numpy.typing import ArrayLike

from coxswain.config import ModelConfig
from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.cost.ulysses import Attention, HeadExchange, key_heads_of
from coxswain.layout import Layout


def head_exchange(
    attention: Attention, model: ModelConfig, layout: Layout, nodes: Sequence[int], recompute: Recompute = "None"
) -> HeadExchange | None:
    """What a job's policy says of its rings; None: they do not exchange heads. `nodes`: of the layout's replicas."""
    if attention == "Ring":
        return None
    node = max(Counter(nodes).values(), default=1)
    return HeadExchange(attention, key_heads(model, layout), model.heads / model.kv_heads, node, recompute)


def key_heads(model: ModelConfig, layout: Layout) -> int:
    """Those that members of any ring can exchange."""
    return key_heads_of(model.kv_heads, [len(stage.devices) for replica in layout.replicas for stage in replica.stages])


def group_size(cost: CostModel, lengths: ArrayLike, nodes: Sequence[int]) -> int:
    """Members of each head group of a ring, 1 where heads stay. `nodes`: of its members, in ring order."""
    if cost.exchange is None:
        return 1
    return min(cost.exchange.of(len(nodes)), key=lambda size: ring_seconds(cost, lengths, nodes, size))


def ring_seconds(cost: CostModel, lengths: ArrayLike, nodes: Sequence[int], size: int) -> float:
    """Seconds of a ring with head groups of this size. `nodes`: of its members, in ring order."""
    groups = (nodes[i : i + size] for i in range(0, len(nodes), size))
    within = all(len(set(group)) == 1 for group in groups)
    return cost.packed_ring_seconds(lengths, len(nodes), len(set(nodes)) == 1, size, within)
