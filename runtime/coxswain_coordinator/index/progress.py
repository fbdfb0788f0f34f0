"""The sources of one job: the assigned shares and what loaders found in them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed, SourceBlocks, SourceReport
from coxswain_coordinator.index.merge import Index, assign_shares


class IndexProgress:
    """Grows as loaders register and index."""

    def __init__(self, mix: MixConfig) -> None:
        self._mix = mix
        self.shares: tuple[LoaderShare, ...] = ()
        self.index: Index | None = None  # of all shares, merged
        self.reports: tuple[SourceReport, ...] = ()
        self._indexed: dict[LoaderShare, dict[int, Indexed]] = {}  # by part

    def assign(self, loaders: list[str]) -> str:
        """Assigns shares to loaders; returns a summary."""
        self.shares = assign_shares(self._mix, loaders)
        return f"{_count(len(self.shares), 'share')} of {_count(len(self._mix.sources), 'source')}"

    def add(self, part: Indexed) -> None:
        """Parts of a share come in any order, and again. Of another split than before: the share begins again."""
        known = self._indexed.setdefault(part.share, {})
        if any(other.parts != part.parts for other in known.values()):
            known.clear()
        known[part.part] = part

    @property
    def missing(self) -> list[LoaderShare]:
        """Shares that are not indexed."""
        return [s for s in self.shares if not _is_whole(self._indexed.get(s, {}))]

    @property
    def complete(self) -> bool:
        return bool(self.shares) and not self.missing

    def parts(self) -> tuple[Indexed, ...]:
        """Of each share, its parts joined. What loaders still send of shares that an earlier coordinator assigned is left out."""
        return tuple(_joined(self._indexed[share]) for share in self.shares)

    def blocks(self, source: str, start: int = 0, known: str = "") -> SourceBlocks | None:
        """Blocks of a source from the `start`-th on, as many as a message carries; None until there is an index.

        `known`: the fingerprint of what the asker has; no blocks where it has them all.
        """
        if self.index is None:
            return None
        for found in self.index.sources:
            if found.name == source:
                wanted = () if known == found.fingerprint else found.blocks[start : start + BLOCKS_IN_MESSAGE]
                return SourceBlocks(source, wanted, len(found.blocks), found.fingerprint)
        raise Refused("NoSuchSource", f"source {source!r}: the mix has {', '.join(s.name for s in self.index.sources)}")


def _is_whole(parts: Mapping[int, Indexed]) -> bool:
    return bool(parts) and len(parts) == next(iter(parts.values())).parts


def _joined(parts: Mapping[int, Indexed]) -> Indexed:
    ordered = [parts[number] for number in sorted(parts)]
    return replace(ordered[0], blocks=tuple(block for part in ordered for block in part.blocks), part=0, parts=1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
