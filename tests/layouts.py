"""Random layouts, and a small model's parameters of every kind."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from coxswain.holdings import ParameterSpec
from coxswain.layout import Device, Layout, Replica, Stage

LAYERS = 4
SPECS = (
    ParameterSpec("tied", (64, 8), "ends", split=0),
    ParameterSpec("embedding", (64, 8), "first", split=0),
    *(
        spec
        for layer in range(LAYERS)
        for spec in (
            ParameterSpec(f"{layer}.queries", (16, 8), layer, split=0, heads=8),
            ParameterSpec(f"{layer}.keys", (4, 8), layer, split=0, heads=2, partial=True),
            ParameterSpec(f"{layer}.output", (8, 16), layer, split=1, heads=8),
            ParameterSpec(f"{layer}.norm", (8,), layer),
            ParameterSpec(f"{layer}.head_norm", (2,), layer, partial=True),
        )
    ),
    ParameterSpec("norm", (8,), "last"),
    ParameterSpec("head", (64, 8), "last", split=0),
)


def layout_of(*replicas: Sequence[tuple[int, int]]) -> Layout:
    """Each replica as stages of (tensor degree, first layer of the next stage)."""
    made = []
    for r, stages in enumerate(replicas):
        starts = [0, *(stop for _, stop in stages)]
        each = zip(stages, starts, strict=False)
        made.append(
            Replica(
                tuple(
                    Stage(tuple(Device(10 * r + s, d) for d in range(degree)), start, stop)
                    for s, ((degree, stop), start) in enumerate(each)
                )
            )
        )
    return Layout(tuple(made))


@st.composite
def layouts(draw: st.DrawFn, replicas: int = 3) -> Layout:
    """Replicas of one to three stages, each stage of one, two, four or eight devices."""
    return random_layout(random.Random(draw(st.integers(0, 1 << 32))), draw(st.integers(1, replicas)))


def random_layout(rng: random.Random, replicas: int, degrees: Sequence[int] = (1, 2, 4, 8)) -> Layout:
    made = []
    for _ in range(replicas):
        cuts = sorted(rng.sample(range(1, LAYERS), rng.randint(0, 2)))
        made.append([(rng.choice(degrees), stop) for stop in [*cuts, LAYERS]])
    return layout_of(*made)
