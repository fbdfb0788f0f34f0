"""What each rank of a layout holds: every element is on every replica, and every gradient counts as often as it must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.boxes import full_box, window
from coxswain.holdings import ParameterSpec, all_holdings, tensor_faults
from coxswain.layout import Device, Layout, Replica, Stage, uniform_layout

LAYERS = 4
SPECS = (
    ParameterSpec("embedding", (64, 8), "first", split=0),
    ParameterSpec("queries", (16, 8), 0, split=0, heads=8),
    ParameterSpec("keys", (4, 8), 1, split=0, heads=2, partial=True),
    ParameterSpec("output", (8, 16), 2, split=1, heads=8),
    ParameterSpec("norm", (8,), 3),
    ParameterSpec("head norm", (2,), 3, partial=True),
    ParameterSpec("tied", (64, 8), "ends", split=0),
    ParameterSpec("head", (64, 8), "last", split=0),
)


def devices(count: int) -> list[Device]:
    return [Device(0, d) for d in range(count)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Replicas of one to three stages, each stage of one, two, four or eight devices."""
    replicas = []
    for r in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, LAYERS - 1), max_size=2)))
        edges = [0, *cuts, LAYERS]
        degrees = [draw(st.sampled_from([1, 2, 4, 8])) for _ in edges[1:]]
        groups = [tuple(Device(10 * r + s, d) for d in range(degree)) for s, degree in enumerate(degrees)]
        stages = zip(groups, edges, edges[1:], strict=False)
        replicas.append(Replica(tuple(Stage(group, start, stop) for group, start, stop in stages)))
    return Layout(tuple(replicas))


@given(layouts())
def test_every_element_is_held_by_every_replica(layout: Layout) -> None:
    held = list(all_holdings(SPECS, layout, LAYERS))
    seats = layout.ranks()
    for spec in SPECS:
        for replica in range(len(layout.replicas)):
            covered = np.zeros(spec.shape, dtype=bool)
            for seat, holdings in zip(seats, held, strict=True):
                for holding in holdings:
                    if seat.replica == replica and holding.box.name == spec.name:
                        covered[window(full_box(spec.name, spec.shape), holding.box)] = True
            assert covered.all(), f"{spec.name} on replica {replica}"


@given(layouts())
def test_a_gradient_that_all_ranks_of_a_group_share_counts_once_a_stage(layout: Layout) -> None:
    held = list(all_holdings(SPECS, layout, LAYERS))
    for holdings, seat in zip(held, layout.ranks(), strict=True):
        counts = {h.box.name: h.counts for h in holdings}
        assert counts.get("norm", seat.tensor == 0) == (seat.tensor == 0)
        assert all(counts.get(name, True) for name in ("keys", "head norm", "tied", "queries"))


def test_key_heads_below_the_degree_are_held_by_several_ranks() -> None:
    keys = SPECS[2]
    assert [keys.box(t, 4).offset for t in range(4)] == [(0, 0), (0, 0), (2, 0), (2, 0)]
    assert {keys.box(t, 4).shape for t in range(4)} == {(2, 8)}


def test_a_tied_embedding_is_on_the_first_and_the_last_stage_and_nowhere_else() -> None:
    layout = uniform_layout(devices(3), LAYERS, pipeline=3)
    names = [{h.box.name for h in holdings} for holdings in all_holdings(SPECS, layout, LAYERS)]
    assert ["tied" in n for n in names] == [True, False, True]
    assert ["embedding" in n for n in names] == [True, False, False]
    assert ["head" in n for n in names] == [False, False, True]


def test_a_model_of_one_stage_holds_a_tied_embedding_once() -> None:
    layout = uniform_layout(devices(1), LAYERS)
    (holdings,) = all_holdings(SPECS, layout, LAYERS)
    assert [h.box.name for h in holdings].count("tied") == 1


@pytest.mark.parametrize(
    ("spec", "degree", "message"),
    [
        (ParameterSpec("q", (12, 8), 0, split=0, heads=6), 4, "q: 6 heads cannot be shared evenly by a tensor group of 4"),
        (ParameterSpec("up", (9, 8), 0, split=0), 2, "up: 9 rows cannot be shared evenly by a tensor group of 2"),
        (ParameterSpec("down", (8, 9), 0, split=1), 2, "down: 9 columns cannot be shared evenly by a tensor group of 2"),
        (ParameterSpec("q", (4, 8), 0, split=0, heads=2), 4, "q: 2 heads cannot be shared evenly by a tensor group of 4"),
        (ParameterSpec("k", (6, 8), 0, split=0, heads=3, partial=True), 2, "k: 3 heads cannot be shared evenly by a tensor group of 2"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_degree_that_does_not_divide_a_parameter_is_refused_by_name(
    spec: ParameterSpec, degree: int, message: str
) -> None:
    assert tensor_faults([spec], [1, degree]) == [message]
