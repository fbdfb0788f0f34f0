"""Decides when a checkpoint is complete, which ones are kept, and what is garbage. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

from coxswain.config import CheckpointConfig
from coxswain.wire import Shard, ShardsSaved


class PendingCheckpoints:
    """Shards by step and rank of the checkpoints that are under way in one generation."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.saved: dict[int, dict[int, ShardsSaved]] = {}  # by step and rank

    def add(self, report: ShardsSaved) -> None:
        self.saved.setdefault(report.step, {})[report.rank] = report

    def by(self, step: int) -> set[int]:
        """The ranks that have saved their part of this checkpoint."""
        return set(self.saved.get(step, ()))

    def complete(self, ranks: int) -> int | None:
        """The earliest step whose every rank has saved."""
        return min((step for step, by_rank in self.saved.items() if len(by_rank) == ranks), default=None)

    def newest(self, rank: int) -> int:
        """The latest pending checkpoint of which this rank has saved its part; 0: none."""
        return max((step for step, by_rank in self.saved.items() if rank in by_rank), default=0)

    def shards(self, step: int) -> tuple[Shard, ...]:
        """The shards of a complete checkpoint in rank order, each once. Several may name one object, with other boxes."""
        by_rank = self.saved[step]
        return tuple(dict.fromkeys(shard for rank in sorted(by_rank) for shard in by_rank[rank].shards))

    def seconds(self, step: int) -> float:
        """From the step boundary until the slowest rank had saved."""
        return max(saved.seconds for saved in self.saved[step].values())

    def forget(self, step: int) -> None:
        """Drops this checkpoint, which is made, and those before it."""
        self.saved = {s: by_rank for s, by_rank in self.saved.items() if s > step}

    def pending_keys(self) -> set[str]:
        """Of all shards that a later manifest may name. Safe in another thread."""
        saves = [saved for by_rank in list(self.saved.values()) for saved in list(by_rank.values())]
        return objects_of(s for saved in saves for s in saved.shards)


def objects_of(shards: Iterable[Shard]) -> set[str]:
    """The keys of shards and their sidecars."""
    return {key for shard in shards for key in shard.objects}


def kept_steps(config: CheckpointConfig, steps: Iterable[int]) -> set[int]:
    """The steps to keep: the last `keepLast` (at least one), and multiples of `keepEvery`."""
    ordered = sorted(steps)
    last = set(ordered[-max(config.keep_last, 1) :])
    return last | {s for s in ordered if config.keep_every and s % config.keep_every == 0}


Objects: TypeAlias = "array[int]"
"""The objects that a manifest names: 8 bytes each, since a run may keep hundreds of manifests that name thousands."""


def objects(keys: Iterable[str]) -> Objects:
    return array("q", map(hash, keys))


def unnamed(keys: Iterable[str], named: Iterable[Objects]) -> list[str]:
    """Those of the keys that none of these manifests names. One whose hash another object has may stay."""
    left = {hash(key): key for key in keys}
    rest = set(left)
    for found in named:
        rest.difference_update(found)
    return sorted(left[number] for number in rest)
