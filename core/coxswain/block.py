"""A block of a source as it is listed; `coxswain.index` holds its contents."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.structs import prepare


class BlockEntry(msgspec.Struct, frozen=True, order=True):
    """One block of a source: a Parquet row group, or a byte range or the whole of a text file."""

    path: str  # of the object, relative to the source's uri; sources sort by (path, ordinal)
    ordinal: int  # row group, or range, within the object
    offset: int  # first byte; 0 for row groups
    size: int  # bytes of the range, or of the whole object for row groups
    object_size: int
    etag: str  # of the object: content identity; changed content is refused by name
    samples: int = 0  # readable samples; known once indexed
    rejected: int = 0  # samples that do not decode, hence are not in the index
    tokens: int = 0
    key: str = ""  # of its index object
    shortest: int | UnsetType = UNSET  # tokens of its shortest sample; an earlier release has not said


def shortest_of(blocks: Iterable[BlockEntry]) -> int:
    """Tokens of the shortest sample of these blocks; 0: it is not known of all."""
    found = [b.shortest for b in blocks if b.samples]
    known = [length for length in found if length is not UNSET]
    return min(known) if known and len(known) == len(found) else 0


prepare(__name__)
