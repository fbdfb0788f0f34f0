"""Seconds and bytes of stages: what a layer takes on a tensor group, how many fit, what passes between stages and replicas.

A slow device computes slower; its messages do not travel slower (`Node.bandwidth` says that). Gradients and new weights
travel after the last backward: what the engine overlaps is not credited. The optimizer's own update is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain.cost.constants import MODELS, Constants, Hardware, constants_for, device_memory
from coxswain.cost.memory import MASTER, RESERVED, Peak, StagePlace, Workload, stage_peak, widths_of
from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.holdings import ParameterSpec, tensor_faults
from coxswain.models import parameter_specs
from coxswain.plan.layouts.cluster import Cluster
from coxswain.presets import PRESETS, TYPICAL_ROWS

BF16 = 2
_LEAST_ROWS = 64  # of a vocabulary that follows a tokenizer


class Group(NamedTuple):
    """A tensor group: devices of one node that share a stage. The slowest sets the pace."""

    node: int
    devices: tuple[int, ...]
    slowdown: float
    degree: int


def make_group(node: int, devices: Iterable[int], slowdown: float) -> Group:
    mine = tuple(sorted(devices))
    return Group(node, mine, slowdown, len(mine))


def shape_of(model: str) -> ModelConfig:
    """A model by the names of `cox plan`, its vocabulary that of a typical tokenizer where it has none. Raises Refused."""
    shapes = {str(name): shape for name, shape in PRESETS.items()} | MODELS
    if model not in shapes:
        raise Refused("UnknownModel", f"--model {model!r}: not known; use one of {', '.join(sorted(shapes))}")
    shape = shapes[model]
    return replace(shape, vocabulary=shape.vocabulary or TYPICAL_ROWS)


class Costs:
    """One model on one cluster's devices and links. All seconds are of one micro-batch unless said."""

    def __init__(self, cluster: Cluster, model: ModelConfig, hardware: Hardware | None = None) -> None:
        """`hardware`: of a job's profile, by which seconds are counted instead of the cluster's; memory is the cluster's."""
        self.cluster, self.model = cluster, model
        constants = constants_for(hardware or cluster.hardware, model)
        self.specs = parameter_specs(model, model.vocabulary or _LEAST_ROWS)
        kept = cluster.copies and len(cluster.nodes) > 1
        self.work = Workload(BF16, cluster.tokens, cluster.recompute, copies=kept)
        memory = device_memory(cluster.hardware)
        self.limit = memory - RESERVED if memory else None  # bytes of a device; None: not judged
        self.forward = 1 / 3 if cluster.recompute == "None" else 1 / 4  # part of a stage's seconds
        self.inside, self.between = constants.inside_node_gbps * 1e9, constants.between_nodes_gbps * 1e9
        self._layer, self._loss = _compute_seconds(cluster, model, constants)
        self._hops: dict[tuple[int, int, int, int], float] = {}
        self._syncs: dict[tuple[int, int, bool, bool, int, int], float] = {}
        self._times: dict[tuple[int, float], float] = {}
        self._caps: dict[tuple[int, int, bool, int, int | None], int] = {}
        self._elements: dict[tuple[int, bool, bool], tuple[int, int]] = {}

    def at(self, slowdowns: Sequence[Sequence[float]]) -> Costs:
        """The same model, nodes and limit with other slowdowns, infinite for dead devices.

        Both share their tables: no entry depends on a slowdown that is not in its key.
        """
        other = copy(self)
        other.cluster = self.cluster.with_slowdowns(slowdowns)
        return other

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Tensor degrees that can share the model, ascending."""
        return tuple(d for d in range(1, self.cluster.max_tensor + 1) if not tensor_faults(self._sample, [d]))

    @cached_property
    def _sample(self) -> tuple[ParameterSpec, ...]:
        """All layers are alike: the first one and the ends stand for them."""
        return tuple(spec for spec in self.specs if spec.place == 0 or isinstance(spec.place, str))

    @property
    def hop_bytes(self) -> int:
        """Of a micro-batch's activations."""
        return BF16 * self.cluster.tokens * self.model.hidden

    def layer_seconds(self, degree: int, slowdown: float) -> float:
        """Forward and backward of one layer on a tensor group."""
        key = degree, slowdown
        if key not in self._times:
            sums = 4 if self.cluster.recompute == "None" else 6
            travel = sums * 2 * (degree - 1) / degree * self.hop_bytes / self.inside
            self._times[key] = self._layer / degree * slowdown + travel
        return self._times[key]

    def loss_seconds(self, group: Group) -> float:
        """What the last stage does besides its layers."""
        return self._loss / group.degree * group.slowdown

    def hop_seconds(self, a: Group, b: Group) -> float:
        """From a stage to the next or back: a device sends to each device of its part of the other group."""
        key = a.node, b.node, a.degree, b.degree
        if key not in self._hops:
            copies = -(-max(a.degree, b.degree) // min(a.degree, b.degree))
            self._hops[key] = copies * self.hop_bytes / self._rate(a.node, b.node)
        return self._hops[key]

    def _rate(self, a: int, b: int) -> float:
        nodes = self.cluster.nodes
        return self.inside if a == b else self.between * min(nodes[a].bandwidth, nodes[b].bandwidth)

    def sync_seconds(self, group: Group, layers: int, first: bool, last: bool, replicas: int) -> float:
        """Gradients to their owners and new weights back, of a device whose peers are on other nodes where there are any."""
        key = group.degree, layers, first, last, replicas, group.node
        if key not in self._syncs:
            self._syncs[key] = self._sync(*key)
        return self._syncs[key]

    def _sync(self, degree: int, layers: int, first: bool, last: bool, replicas: int, node: int) -> float:
        nodes = self.cluster.nodes
        rate = self.inside if len(nodes) == 1 else self.between * nodes[node].bandwidth
        elements = self.elements(degree, layers, first, last)
        return (MASTER + BF16) * elements * (replicas - 1) / replicas / rate

    def elements(self, degree: int, layers: int, first: bool, last: bool) -> int:
        """Of the parameters on one device."""
        key = degree, first, last
        if key not in self._elements:
            self._elements[key] = self._count(*key)
        each, edges = self._elements[key]
        return layers * each + edges

    def _count(self, degree: int, first: bool, last: bool) -> tuple[int, int]:
        places = {"first": first, "last": last, "ends": first or last}
        sizes = [(spec.place, spec.box(0, degree).elements) for spec in self._sample]
        edges = sum(size for place, size in sizes if isinstance(place, str) and places[place])
        return sum(size for place, size in sizes if place == 0), edges

    def peak(self, degree: int, layers: int, first: bool, depth: int, replicas: int) -> Peak:
        elements = self.elements(degree, layers, first, depth == 1)
        widths = widths_of(self.model, self._sample, 0, degree)
        return stage_peak(elements, widths, StagePlace(layers, first, depth), replicas, self.work)

    def most_layers(self, degree: int, first: bool, depth: int, replicas: int) -> int:
        """How many layers fit on a stage; 0: none."""
        key = degree, replicas, first, depth, self.limit
        if key not in self._caps:
            self._caps[key] = self._most(degree, replicas, first, depth)
        return self._caps[key]

    def _most(self, degree: int, replicas: int, first: bool, depth: int) -> int:
        if self.limit is None:
            return self.model.layers
        low, high = 0, self.model.layers
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.peak(degree, middle, first, depth, replicas).total <= self.limit
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _compute_seconds(cluster: Cluster, model: ModelConfig, constants: Constants) -> tuple[float, float]:
    """Seconds of one layer and of the loss, on one healthy device."""
    head = model.size_of_head
    attention = model.hidden * 2 * (model.heads + model.kv_heads) * head
    weights, rows = attention + 3 * model.hidden * model.feed_forward, model.hidden * model.vocabulary
    linear = constants.linear_us_per_token * 1e-6 * cluster.tokens / (model.layers * weights + rows)
    whole = float(CostModel(constants).attention_seconds(cluster.sequence))
    scores = cluster.micro_batch * whole / model.layers
    again = {"None": (1.0, 1.0), "Selective": (4 / 3, 1.0), "Full": (4 / 3, 4.5 / 3.5)}[cluster.recompute]
    fixed = constants.task_ms * 1e-3 / model.layers
    return again[0] * linear * weights + again[1] * scores + fixed, linear * rows
