"""Maps a sample's index within a source to its block, and a block to the loader that owns it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from coxswain.errors import Refused, Retryable
from coxswain.index import BlockEntry
from coxswain.index import fingerprint as fingerprint_of
from coxswain.packed import Packed
from coxswain.planlog import LoaderShare
from coxswain.wire import SourceBlocks
from coxswain_link.http_client import Client


def all_blocks(coordinator: Client, source: str, wait: float) -> Packed[BlockEntry]:
    """All blocks of a source, in index order. Raises Retryable while the coordinator lacks some, or has others meanwhile."""
    return Packed(_sent_blocks(coordinator, source, wait), BlockEntry)


def _sent_blocks(coordinator: Client, source: str, wait: float) -> Iterator[BlockEntry]:
    count, first = 0, None
    while first is None or count < first.total:
        found = coordinator.get("/v1/blocks", SourceBlocks, source=source, wait=wait, **{"from": count})
        if found is None:
            raise Retryable(f"the coordinator does not have the whole index of source {source!r} yet")
        first = first or found
        if (found.fingerprint, found.total) != (first.fingerprint, first.total) or (count and not found.blocks):
            raise Retryable(f"the index of source {source!r} is another one since its first blocks were sent")
        yield from found.blocks
        count += len(found.blocks)


class BlockMaps:
    """The sources of a job. A source that is asked for again, in the next world, is sent only if it has changed."""

    def __init__(self, coordinator: Client) -> None:
        self._coordinator = coordinator
        self._known: dict[str, tuple[str, BlockMap]] = {}  # by source, with its fingerprint

    def get(self, source: str, wait: float) -> BlockMap:
        """Raises as `all_blocks`."""
        fingerprint, known = self._known.get(source, ("", None))
        if known is not None:
            found = self._coordinator.get("/v1/blocks", SourceBlocks, source=source, wait=wait, known=fingerprint)
            if found is not None and found.fingerprint == fingerprint:
                return known
        found_map = BlockMap(all_blocks(self._coordinator, source, wait))
        self._known[source] = fingerprint_of(found_map.blocks), found_map
        return found_map


class BlockMap:
    """The blocks of one source in index order: sample indices count through them."""

    def __init__(self, blocks: Sequence[BlockEntry]) -> None:
        self.blocks = blocks if isinstance(blocks, Packed) else Packed(blocks, BlockEntry)
        self._stops = np.cumsum(np.fromiter((b.samples for b in self.blocks), np.int64, len(blocks)))

    def locate(self, index: int) -> tuple[int, int]:
        """(position of the block among the source's blocks, which of its readable samples)."""
        block = int(np.searchsorted(self._stops, index, side="right"))
        if index < 0 or block == len(self.blocks):
            raise Refused("PlanBroken", f"sample {index} is not in the index, which has {self.samples} samples")
        return block, index - (int(self._stops[block - 1]) if block else 0)

    @property
    def samples(self) -> int:
        return int(self._stops[-1]) if len(self.blocks) else 0


class Owners:
    """The loaders that own blocks. Made once: each of a step's sequences is looked up."""

    def __init__(self, shares: Iterable[LoaderShare]) -> None:
        self._loaders = {(s.source, s.shares, s.share): s.loader for s in shares}
        self._shares = {source: shares for source, shares, _ in self._loaders}

    def of(self, source: str, block: int) -> str:
        """Name of the loader that owns the block at this position of the source."""
        shares = self._shares.get(source, 1)
        if loader := self._loaders.get((source, shares, block % shares)):
            return loader
        raise Refused("PlanBroken", f"no loader of this world owns block {block} of source {source!r}")
