"""What a worker makes of the nodes of its world: its copy is of a rank on another one, and state comes from its own one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.config import RecoveryConfig
from coxswain.copies import wards_of
from coxswain.layout import Device, uniform_layout
from coxswain.live import Holder, LiveSource
from coxswain.wire import World
from tests.unit import report_samples
from tests.unit.worker_fakes import BrokenOff, FakeEngine, Running

LAYOUT = uniform_layout([Device(trainer, 0) for trainer in range(4)], 4)
NODES = ("a", "a", "b", "b")
WORLD = World(2, 5, LAYOUT, LAYOUT.ranks(), tuple(f"trainer-{t}" for t in range(4)), (), nodes=NODES)
SOURCE = LiveSource(1, LAYOUT, 5, tuple(Holder(rank, rank) for rank in range(4)))


@pytest.mark.parametrize(("copies", "wards"), [(True, (2, 3, 0, 1)), (False, ())])
def test_where_the_job_has_copies_a_rank_keeps_that_of_a_rank_on_another_node(
    monkeypatch: pytest.MonkeyPatch, copies: bool, wards: Sequence[int]
) -> None:
    """Two trainers of one node would keep each other's: with the node, the steps since the checkpoint would be lost."""
    asked = list[Any]()

    def engine(*arguments: Any) -> Any:
        *_, generation, given, _, _ = arguments
        asked.append((generation, given))
        raise BrokenOff

    Running(monkeypatch, report_samples.job(recovery=RecoveryConfig(copies=copies)), WORLD, engine).run()
    assert asked == [(WORLD.generation, wards)]
    assert wards_of(LAYOUT.ranks()) == (3, 0, 1, 2), "some rank's copy is on its own node where nodes are not known"


def test_a_world_that_goes_on_from_memory_knows_the_nodes_that_state_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else state travels between nodes that a rank of the own node has."""
    asked = list[Any]()

    class Engine(FakeEngine):
        def take_over(self, *given: Any) -> None:
            asked.append(given)
            raise BrokenOff

    Running(monkeypatch, report_samples.job(), replace(WORLD, live=SOURCE), lambda *_: Engine()).run()
    assert asked == [(SOURCE, NODES)]
