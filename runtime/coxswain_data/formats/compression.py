"""Reads whole objects, plain, .gz or .zst, piece by piece onto local disk."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sized
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


def is_compressed(path: str) -> bool:
    return path.endswith(_GZIP + _ZSTD)


def read_whole(reader: ObjectReader, limit: int) -> Data:
    """The object's content, unpacked. Raises Refused (ObjectTooLarge, ObjectUnreadable) by name."""
    if is_compressed(reader.path):
        return reader.spool.hold(at_most(limit, _unpacked(reader), _too_large(reader, limit)))
    if reader.size > limit:
        raise _too_large(reader, limit)
    return reader.spool.hold(reader.pieces())


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
