"""The sources of one job: the assigned shares and what loaders found in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry, IndexedShare
from coxswain.packed import Packed
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed, SourceBlocks, SourceReport
from coxswain_coordinator.index.merge import Index, assign_shares


@dataclass(slots=True)
class _Parts:
    """What has come of a share."""

    of: int
    found: dict[int, IndexedShare] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return len(self.found) == self.of


class IndexProgress:
    """Grows as loaders register and index."""

    def __init__(self, mix: MixConfig) -> None:
        self._mix = mix
        self.shares: tuple[LoaderShare, ...] = ()
        self.index: Index | None = None  # of all shares, merged
        self.reports: tuple[SourceReport, ...] = ()
        self._indexed: dict[LoaderShare, _Parts] = {}

    def assign(self, loaders: list[str]) -> str:
        """Assigns shares to loaders; returns a summary."""
        self.shares = assign_shares(self._mix, loaders)
        return f"{_count(len(self.shares), 'share')} of {_count(len(self._mix.sources), 'source')}"

    def add(self, part: Indexed) -> None:
        """Parts of a share come in any order, and again. Of another split than before: the share begins again.

        Once there is an index they count for nothing.
        """
        if self.index is not None:
            return
        known = self._indexed.get(part.share)
        if known is None or known.of != part.parts:
            known = self._indexed[part.share] = _Parts(part.parts)
        blocks = Packed(part.blocks, BlockEntry)
        known.found[part.part] = IndexedShare(part.share, blocks, part.tokenizer, part.vocabulary, part.listed)

    def finish(self, index: Index) -> None:
        """Keeps the index in place of the parts that it was merged from: a source may have millions of blocks."""
        self.index = index
        self._indexed.clear()

    @property
    def missing(self) -> list[LoaderShare]:
        """Shares that are not indexed."""
        return [s for s in self.shares if not ((parts := self._indexed.get(s)) and parts.whole)]

    @property
    def complete(self) -> bool:
        return bool(self.shares) and not self.missing

    def parts(self) -> tuple[IndexedShare, ...]:
        """Of each share, its parts in order. Shares that an earlier coordinator assigned are left out."""
        return tuple(part for share in self.shares for _, part in sorted(self._indexed[share].found.items()))

    def blocks(
        self, source: str, start: int = 0, known: str = "", most: int = BLOCKS_IN_MESSAGE
    ) -> SourceBlocks | None:
        """Blocks of a source from the `start`-th on, as many as a message carries; None until there is an index.

        `known`: the fingerprint of what the asker has; no blocks where it has them all.
        """
        if self.index is None:
            return None
        for found in self.index.sources:
            if found.name == source:
                wanted = () if known == found.fingerprint else found.blocks[start : start + most]
                return SourceBlocks(source, tuple(wanted), len(found.blocks), found.fingerprint)
        raise Refused("NoSuchSource", f"source {source!r}: the mix has {', '.join(s.name for s in self.index.sources)}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
