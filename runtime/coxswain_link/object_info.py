"""What a listing says of an object."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ObjectInfo:
    path: str  # relative to the store's uri
    size: int  # bytes
    etag: str  # content identity; of a file: size, mtime and inode


Listing = list[ObjectInfo]
