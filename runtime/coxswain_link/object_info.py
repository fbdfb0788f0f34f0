"""What a listing says of an object."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, order=True)
class ObjectInfo:
    path: str  # relative to the store's uri
    size: int  # bytes
    etag: str  # content identity; of a file: size, mtime and inode


Listing = list[ObjectInfo]

# Completes msgspec's view of it before threads decode it, as `coxswain.structs.prepare` does.
msgspec.msgpack.Decoder(ObjectInfo)
