"""What a world takes over from the one before without a checkpoint: which ranks hold which state in memory. Pure.

A rank of a world owns a shard of the state, and may hold a copy of another rank's: its ward's. Each change of world names
the layout that shards are cut by, and for every rank of that layout the ranks of the new world that hold its shard.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coxswain.layout import Layout

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
