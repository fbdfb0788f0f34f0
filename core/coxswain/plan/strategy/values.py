"""What a strategy is chosen for, and what is chosen: kinds of replicas, how many of each, predicted seconds and memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec
from msgspec import UNSET

from coxswain.config import ModelConfig, ReplicaShape, StageShape
from coxswain.cost.constants import Constants
from coxswain.cost.memory import Recompute, Workload
from coxswain.cost.ulysses import Attention
from coxswain.layout import Device, Layout, Replica, Stage, shaped_layout
from coxswain.structs import prepare

STEPS = 5
"""Sampled steps that are placed on a proposed layout."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of replica: devices of a tensor group, and the layers of each stage."""

    tensor: int
    layers: tuple[int, ...]

    @property
    def devices(self) -> int:
        return self.tensor * len(self.layers)

    @property
    def name(self) -> str:
        return f"tp{self.tensor}pp{len(self.layers)}"

    def shape(self, count: int, tokens: int = 0) -> ReplicaShape:
        """`tokens`: of a task; 0: those of the policy."""
        return ReplicaShape(tuple(StageShape(layers, self.tensor) for layers in self.layers), count, tokens or UNSET)

    def replica(self) -> Replica:
        """One replica of this kind, as if it had the first devices of one trainer."""
        cuts = list(accumulate(self.layers, initial=0))
        return Replica(
            tuple(
                Stage(tuple(Device(0, s * self.tensor + t) for t in range(self.tensor)), start, stop)
                for s, (start, stop) in enumerate(pairwise(cuts))
            )
        )


def kind_of(shape: ReplicaShape) -> Kind:
    """The kind of replicas of a shape that mode Auto has chosen: all of its stages have one tensor degree."""
    return Kind(shape.stages[0].tensor, tuple(stage.layers for stage in shape.stages))


Counts = tuple[tuple[Kind, int], ...]
"""How many replicas of each kind: largest tensor groups first, as a layout finds room for them."""


def name_of(counts: Counts) -> str:
    return " + ".join(f"{count} x {kind.name}" for kind, count in counts)


def layout_of(counts: Counts, trainers: tuple[int, ...]) -> Layout:
    """The layout on trainers of so many devices; without replicas where stages find no room."""
    devices = [Device(trainer, device) for trainer, each in enumerate(trainers) for device in range(each)]
    return shaped_layout(devices, [kind.shape(count) for kind, count in counts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What replicas are made of and for, besides the lengths. A trainer's devices are one node's."""

    trainers: tuple[int, ...]  # devices of each
    model: ModelConfig  # with its vocabulary
    constants: Constants  # of one device that has the whole model
    capacity: int  # tokens of a replica in one task; 0: as many as memory holds, which differ by kind: no job runs that
    max_degree: int
    least: int = 0  # tokens that a kind may have whose memory holds fewer than `capacity`; 0: all have that
    memory: int = 0  # bytes of a device; 0: not judged
    element: int = 2  # bytes of an activation
    recompute: tuple[Recompute, ...] = ("None",)  # modes that may be chosen, the mildest first
    longest: int = 0  # tokens of the longest sequence that may come, sampled or not
    whole_matrices: bool = False  # whether the optimizer needs them, so that no tensor group may cut them
    offload: tuple[
        tuple[Recompute, float], ...
    ] = ()  # the share of any task's activations that leaves the device, by mode
    attention: Attention = "Ring"  # how members of a ring share it
    copies: bool = False  # whether each device keeps a copy of another one's part of the optimizer's state
    nodes: tuple[str, ...] = ()  # of each trainer, as far as they are known: whose copy a device keeps depends on them

    def workload(self, tokens: int, recompute: Recompute) -> Workload:
        """What a replica holds of a task of so many tokens."""
        share, kept = dict(self.offload).get(recompute, 0.0), self.copies and len(self.trainers) > 1
        return Workload(self.element, tokens, recompute, share, self.attention != "Ring", kept)

    @property
    def devices(self) -> int:
        return sum(self.trainers)

    @property
    def node(self) -> int:
        """Devices of the largest trainer."""
        return max(self.trainers, default=0)


class Alternative(msgspec.Struct, frozen=True, omit_defaults=True):
    """One layout, with what is predicted of it."""

    summary: str  # such as `4 x tp1pp1 + 1 x tp2pp2`
    replicas: tuple[ReplicaShape, ...]
    seconds: float  # of a mean step
    peak_bytes: int = 0  # of the fullest device
    recompute: Recompute = "None"
    placed: bool = True  # seconds: mean of real placements; False: the estimate that proposed the layout


class Refusal(msgspec.Struct, frozen=True):
    """A kind of replica, or a layout, that cannot be had."""

    summary: str
    why: str


class Strategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was chosen, and what else there was, the fastest first."""

    chosen: Alternative
    alternatives: tuple[Alternative, ...] = ()
    refused: tuple[Refusal, ...] = ()
    memory_bytes: int = 0  # of a device; 0: not judged
    steps: int = STEPS  # that were placed on each layout
    tokens: int = 0  # of a mean step


def described(strategy: Strategy) -> str:
    """For people: the layout, its predicted step time, and the next best."""
    chosen, others = strategy.chosen, strategy.alternatives[:3]
    text = f"{chosen.summary}: {chosen.seconds:.3g} s a step predicted, by {strategy.steps} placed steps{_own(chosen)}"
    beside = ", ".join(f"{other.summary} {other.seconds:.3g} s" for other in others)
    return f"{text}; beside {beside}" if beside else text


def _own(chosen: Alternative) -> str:
    """Names the kinds whose tasks have fewer tokens than the policy's."""
    own = ((f"tp{shape.stages[0].tensor}pp{len(shape.stages)}", shape.tokens) for shape in chosen.replicas)
    return "".join(f", {name} with {tokens} tokens a task" for name, tokens in own if tokens)


prepare(__name__)
