"""The interface of a format: the extents of an object, and the samples of one extent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from coxswain.structs import prepare
from coxswain_data.formats.object_reader import ObjectReader

Ids = NDArray[np.integer]
"""A document that is tokens already."""

Content = str | Ids


class Extent(msgspec.Struct, frozen=True):
    """The block of an object: row group `ordinal`, or bytes [offset, offset + size)."""

    ordinal: int
    offset: int
    size: int


class Sample(NamedTuple):
    """A document of a block.

    `at`: its row or byte offset; `text` is None where it does not decode.
    """

    at: int
    text: Content | None


class Block(Protocol):
    """One block, in memory or mapped."""

    nbytes: int

    def samples(self) -> Iterator[Sample]:
        """Every sample in order, also those that do not decode."""

    def text(self, at: int) -> Content:
        """The sample at a row or offset that `samples` gave.

        Raises ValueError when it does not decode.
        """


class OpenObject(Protocol):
    """One object of a source, held open. Raises Refused, naming the object, when it is corrupt."""

    def extents(self) -> list[Extent]:
        """The object's blocks."""

    def read(self, extent: Extent) -> Block:
        """One block of it."""


Format = Callable[[ObjectReader, str], OpenObject]
"""Opens an object: (its reader, name of the text field)."""


def decoded(text: Callable[[], str]) -> str | None:
    """The text, or None where it does not decode."""
    try:
        return text()
    except ValueError:  # UnicodeDecodeError and every error of msgspec are ValueErrors
        return None


def some(names: Sequence[str]) -> str:
    """For people: the first ten. A table may have thousands of columns, and a message goes into a job's status."""
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")


prepare(__name__)
