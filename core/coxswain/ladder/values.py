"""What the ladder looks at, and its rungs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coxswain.layout import Device, Layout

LEAST_GAIN = 0.005  # of a step: less is within the cost model's error
REPLACE_SECONDS = 300.0
"""What replacing a node is taken to cost: its pods move, and the job goes on from memory or a checkpoint."""

Action = Literal["None", "Warn", "Rebalance", "Migrate", "ReplaceNode"]
"""The highest rung allowed: nothing, say so, speeds into placements, other layouts as well, other nodes as well."""

Kind = Literal["Layers", "Groups", "ReplaceNode"]
"""What changes: layers and micro-batches between the same tensor groups; the groups themselves, standby included; a node."""

Speeds = Mapping[Device, float]
"""Of the devices that are not at speed 1. 0: dead."""


def speed_in(speeds: Speeds, device: Device) -> float:
    return speeds.get(device, 1.0)


@dataclass(frozen=True)
class Option:
    """A layout to change to: seconds of its step as predicted, and of the change."""

    kind: Kind
    layout: Layout
    seconds: float
    change: float


@dataclass(frozen=True)
class Options:
    """What the planner says of `current` at `speeds`.

    `stay`: predicted seconds of its step with micro-batches dealt by speed; infinite where it uses a dead device.
    `healthy`: of the best layout with every device at speed 1.
    """

    current: Layout
    speeds: Speeds
    stay: float
    healthy: float
    layouts: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Change:
    """A rung that was taken before `step` for the sake of `devices`."""

    step: int
    kind: Kind
    devices: frozenset[Device]


@dataclass(frozen=True, kw_only=True)
class View:
    """One moment of a job, between two steps. `step`: the next one; all before it are done. Steps count from the job's first.

    `seconds`: of a step at present, `beside`: those of them that are besides tasks; `drag`: as in `drag.py`.
    `planned`: the speeds that the layout was chosen for.
    `least_gain`: of a step, of a change that is worth while; none where the layout was taken at once, without a search.
    `since`: by device, the first step at its present speed, or at a lower one.
    `replace`: seconds that replacing a node takes until training goes on; None where no other node fits.
    """

    action: Action
    step: int
    layout: Layout
    seconds: float
    speeds: Speeds
    planned: Speeds
    beside: float = 0.0
    drag: float = 0.0
    least_gain: float = LEAST_GAIN
    since: Mapping[Device, int] = field(default_factory=dict)
    nodes: Mapping[Device, str] = field(default_factory=dict)
    options: Options | None = None
    changes: tuple[Change, ...] = ()
    replace: float | None = None


@dataclass(frozen=True)
class Keep:
    """Nothing is worth its cost, or allowed."""


@dataclass(frozen=True)
class Plan:
    """Ask the planner for `Options` at these speeds, beside training, and decide again."""

    speeds: Speeds


@dataclass(frozen=True)
class Relayout:
    """Change to `layout`: `gain` seconds a step for `cost` seconds once. `devices`: those for whose sake."""

    kind: Kind
    layout: Layout
    gain: float
    cost: float
    devices: frozenset[Device]


@dataclass(frozen=True)
class ReplaceNode:
    """Replace `node`. `evidence`: slowdown of each of its slow devices, infinite for dead ones."""

    node: str
    gain: float
    cost: float
    evidence: tuple[tuple[Device, float], ...]

    @property
    def devices(self) -> frozenset[Device]:
        return frozenset(device for device, _ in self.evidence)


Rung = Keep | Plan | Relayout | ReplaceNode
