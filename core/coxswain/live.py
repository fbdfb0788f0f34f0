"""What a world takes over from the one before without a checkpoint: which ranks hold which state in memory. Pure.

A rank of a world owns a shard of the state, and may hold a copy of another rank's: its ward's. Each change of world names
the layout that shards are cut by, and for every rank of that layout the ranks of the new world that hold its shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from coxswain.layout import Layout
from coxswain.structs import prepare

Pending = Literal["", "Reduced", "Agreed"]
"""How far a rank was with the step after its last update: nothing of it counts; its reduced gradient is complete; the norm
and the loss of all ranks are known to it too."""


class Held(msgspec.Struct, frozen=True):
    """What one worker holds in memory: the shard of `rank` in the layout of `generation`, after `step` steps."""

    device: int
    generation: int
    rank: int
    step: int
    pending: Pending = ""  # of step `step`
    copies: tuple[int, ...] = ()  # ranks of the same layout of whose shards it holds copies, after as many steps


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """Rank `rank` of the new world holds the shard of rank `former` of the layout before, as its own or as a copy."""

    former: int
    rank: int
    copy: bool = False


class LiveSource(msgspec.Struct, frozen=True):
    """Where the state of a new world comes from: memory of ranks, complete for every shard of `layout`.

    Ranks that are one update behind `step` finish it before anything moves: their gradients are complete, and a rank that
    has agreed on the step knows the norm.
    """

    generation: int  # whose layout the shards are cut by
    layout: Layout
    step: int  # the next one to run
    holders: tuple[Holder, ...]


Standing = tuple[int, Held]
"""A rank of the new world, and what its worker holds."""


def live_source(standings: Iterable[Standing], generation: int, layout: Layout) -> LiveSource | None:
    """The newest step of which every shard of `layout` has a holder that has it or can finish it; None: there is none.

    Only what was cut for `generation` counts. A rank that has done a step knows the norm that was agreed in it.
    """
    mine = sorted(((rank, held) for rank, held in standings if held.generation == generation), key=lambda s: s[0])
    shards = set(range(len(layout.ranks())))
    for step in sorted(_steps(held for _, held in mine), reverse=True):
        holders = tuple(h for rank, held in _able(mine, step) for h in _holders(rank, held) if h.former in shards)
        if {h.former for h in holders} == shards:
            return LiveSource(generation, layout, step, holders)
    return None


def _steps(held: Iterable[Held]) -> set[int]:
    """Steps from which a world could go on: that a rank has done, or that one has agreed on."""
    return {step for h in held for step in (h.step, h.step + (h.pending == "Agreed"))}


def _able(standings: Iterable[Standing], step: int) -> list[Standing]:
    """Those that have the state before `step`, or can finish the step before it. A step to be finished needs a norm: someone in
    `_steps` knows it."""
    return [s for s in standings if s[1].step == step or (s[1].step == step - 1 and s[1].pending)]


def _holders(rank: int, held: Held) -> list[Holder]:
    return [Holder(held.rank, rank), *(Holder(ward, rank, copy=True) for ward in held.copies)]


prepare(__name__)
