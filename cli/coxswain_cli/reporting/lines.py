"""Tokens by source where a run has written them: in memory, those of 300 sources of a million steps would be gigabytes."""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Iterator, Mapping
from pathlib import Path

import msgspec

from coxswain.structs import UNDECODABLE, prepare
from coxswain_cli.reporting.model import Count

_BUFFER = 1 << 18  # bytes: lines are read in their order


class _Line(msgspec.Struct, frozen=True):
    tokens_by_source: dict[str, Count] = {}


class Lines:
    """A file of steps, held open: what it held stays readable when the run replaces it by its newer half."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=_BUFFER)
        self._decoder = msgspec.json.Decoder(_Line)
        weakref.finalize(self, self._file.close)

    def tokens_at(self, offset: int) -> dict[str, int]:
        """Nothing where there is no such line any more."""
        self._file.seek(offset)
        try:
            return self._decoder.decode(self._file.readline()).tokens_by_source
        except UNDECODABLE:
            return {}


class LineTokens(Mapping[str, int]):
    """Those of one line. Each call reads it: ask once for all `items`."""

    __slots__ = ("_lines", "_offset")

    def __init__(self, lines: Lines, offset: int) -> None:
        self._lines, self._offset = lines, offset

    def items(self) -> ItemsView[str, int]:
        return self._lines.tokens_at(self._offset).items()

    def __getitem__(self, name: str) -> int:
        return self._lines.tokens_at(self._offset)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines.tokens_at(self._offset))

    def __len__(self) -> int:
        return len(self._lines.tokens_at(self._offset))


prepare(__name__)
