"""Reads whole objects, plain, .gz or .zst, piece by piece onto local disk."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sized
from itertools import chain
from typing import IO, TypeVar

import zstandard

from coxswain.errors import Refused
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_link.spool import Data

T = TypeVar("T", bound=Sized)

_GZIP, _ZSTD = (".gz", ".tgz"), (".zst", ".tzst")
_WINDOW = "requires too much memory"  # zstd's words for a window above its default limit
_SMALLER_WINDOW = "pack it again with a window of at most 128 MiB (`zstd` without `--long`, or `--long=27`)"
_CHUNK = 128 << 10  # bytes of unpacked content at a time
_FED = 512  # packed bytes that zstd gets at a time: four may become 128 KiB, and it returns all of them at once

_PACKED = {
    "gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "xz": b"\xfd7zXZ\0", "lz4": b"\x04\x22\x4d\x18",
    "zip": b"PK\x03\x04", "bzip2": b"BZh91AY&SY",
}  # fmt: skip
"""How what each of them packs begins; bzip2 by its default level."""


def is_compressed(path: str) -> bool:
    return path.endswith(_GZIP + _ZSTD)


def read_whole(reader: ObjectReader, limit: int) -> Data:
    """The object's content, unpacked. Raises Refused (ObjectTooLarge, ObjectUnreadable) by name."""
    if is_compressed(reader.path):
        return reader.spool.hold(at_most(limit, _not_packed(reader, _unpacked(reader)), _too_large(reader, limit)))
    if reader.size > limit:
        raise _too_large(reader, limit)
    return reader.spool.hold(_not_packed(reader, reader.pieces()))


def check_not_packed(reader: ObjectReader, head: bytes) -> None:
    """Raises Refused (ObjectUnreadable) for content that is packed otherwise than its name says: of thousands of documents, the
    few line breaks among the packed bytes would count as samples that do not decode. `head`: how the content begins."""
    for packer, begin in _PACKED.items():
        if head.startswith(begin):
            raise Refused(
                "ObjectUnreadable",
                f"{reader.where} holds what {packer} has packed, and its name does not say so; allowed is one packing by gzip or "
                f"zstd, with {', '.join(_GZIP + _ZSTD)} at the name's end: rename it, unpack it, or exclude it with `include`",
            )


def _not_packed(reader: ObjectReader, parts: Iterable[bytes]) -> Iterator[bytes]:
    following = iter(parts)
    head = next(filter(None, following), b"")
    check_not_packed(reader, head)
    yield from chain([head], following)


def at_most(limit: int, parts: Iterable[T], too_large: Refused) -> Iterator[T]:
    """The parts, while they have at most `limit` bytes in all."""
    size = 0
    for part in parts:
        size += len(part)
        if size > limit:
            raise too_large
        yield part


def _unpacked(reader: ObjectReader) -> Iterator[bytes]:
    try:
        if not reader.size:
            raise EOFError("it is empty; a packed empty file is longer")
        yield from _gunzip(reader.file()) if reader.path.endswith(_GZIP) else _unzstd(reader.file())
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        way_out = _SMALLER_WINDOW if _WINDOW in str(error) else "upload it again"
        raise Refused(
            "ObjectUnreadable",
            f"{reader.where} cannot be unpacked ({error}); {way_out} or exclude it with `include`",
        ) from error


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    unpacked = gzip.GzipFile(fileobj=file)
    while part := unpacked.read(_CHUNK):
        yield part


def _unzstd(file: IO[bytes]) -> Iterator[bytes]:
    """All frames. Raises EOFError for a truncated one, which zstandard's reader accepts."""
    data = file.read(_FED)
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        while True:
            yield frame.decompress(data)
            if frame.eof:
                break
            if not (data := file.read(_FED)):
                raise EOFError("the last frame is not complete")
        data = frame.unused_data or file.read(_FED)


def _too_large(reader: ObjectReader, limit: int) -> Refused:
    return Refused(
        "ObjectTooLarge",
        f"{reader.where} holds more than {limit >> 20} MiB and can only be read whole; split it, or store it as Parquet "
        "or unpacked",
    )
