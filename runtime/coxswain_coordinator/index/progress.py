"""The sources of one job: the assigned shares and what loaders found in them."""

from __future__ import annotations

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.planlog import LoaderShare
from coxswain.wire import Indexed, SourceBlocks, SourceReport
from coxswain_coordinator.index.merge import Index, assign_shares


class IndexProgress:
    """Grows as loaders register and index."""

    def __init__(self, mix: MixConfig) -> None:
        self._mix = mix
        self.shares: tuple[LoaderShare, ...] = ()
        self.index: Index | None = None  # of all shares, merged
        self.reports: tuple[SourceReport, ...] = ()
        self._indexed: dict[tuple[str, int], Indexed] = {}

    def assign(self, loaders: list[str]) -> str:
        """Assigns shares to loaders; returns a summary."""
        self.shares = assign_shares(self._mix.sources, loaders)
        return f"{len(self.shares)} shares of {len(self._mix.sources)} sources"

    def add(self, part: Indexed) -> None:
        self._indexed[part.share.source, part.share.share] = part

    @property
    def missing(self) -> list[LoaderShare]:
        """Shares that are not indexed."""
        return [s for s in self.shares if (s.source, s.share) not in self._indexed]

    @property
    def complete(self) -> bool:
        return bool(self.shares) and not self.missing

    def parts(self) -> tuple[Indexed, ...]:
        return tuple(self._indexed.values())

    def blocks(self, source: str) -> SourceBlocks | None:
        """All blocks of a source; None until there is an index."""
        if self.index is None:
            return None
        for found in self.index.sources:
            if found.name == source:
                return SourceBlocks(source, found.blocks)
        raise Refused("NoSuchSource", f"source {source!r}: the mix has {', '.join(s.name for s in self.index.sources)}")
