"""What the registered agents hold, as a source of state for a layout. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coxswain.layout import Device, Layout
from coxswain.live import LiveSource, Standing, live_source
from coxswain.planlog import Generation
from coxswain.wire import Register
from coxswain_coordinator.state.registry import index_of

GRACE_SECONDS = 2.0
"""Seconds for reports and digests of the world before, once all of its workers have left it."""


def generations_held(agents: Iterable[Register]) -> list[int]:
    """Those that some worker's state was cut for, the newest first."""
    return sorted({held.generation for agent in agents for held in agent.held or ()}, reverse=True)


def source_for(layout: Layout, agents: Sequence[Register], before: Generation) -> LiveSource | None:
    """A source of state for this layout from what was cut for the generation `before`."""
    return live_source(standings(layout, agents, before), before.generation, before.layout)


def are_alive(agents: Sequence[Register], before: Generation) -> bool:
    """Whether every worker of this generation has left it with its state, and none since it lost a peer."""
    ranks = {rank for rank, _ in standings(before.layout, agents, before)}
    return len(ranks) == len(before.layout.ranks()) and not any(agent.broken for agent in agents)


def standings(layout: Layout, agents: Iterable[Register], before: Generation) -> Iterator[Standing]:
    """By rank of the new layout, what its worker holds of the generation `before`, if that can be true."""
    ranks = {seat.device: seat.rank for seat in layout.ranks()}
    seats = before.layout.ranks()
    for agent in agents:
        index = index_of(agent.name)
        for held in agent.held or ():
            rank = ranks.get(Device(index, held.device))
            if rank is None or held.generation != before.generation or not 0 <= held.rank < len(seats):
                continue
            home = seats[held.rank].device
            if home == Device(index, held.device) and before.trainers[index] == agent.pod:
                yield rank, held
