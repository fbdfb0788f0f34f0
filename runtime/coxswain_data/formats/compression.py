"""Reads whole objects, plain, .gz or .zst, up to a size limit."""

from __future__ import annotations

import gzip
import io
import zlib

import zstandard

from coxswain.errors import Refused
from coxswain_data.formats.base import MAX_WHOLE
from coxswain_link.store import ObjectInfo, Store

_CHUNK = 1 << 20


_GZIP, _ZSTD = (".gz", ".tgz"), (".zst", ".tzst")


def is_compressed(path: str) -> bool:
    return path.endswith(_GZIP + _ZSTD)


def read_whole(store: Store, info: ObjectInfo) -> bytes:
    """The object's content, unpacked. Raises Refused (ObjectTooLarge, ObjectUnreadable) by name."""
    if info.size > MAX_WHOLE:
        raise _too_large(store, info)
    data = store.get(info.path)
    try:
        content = _unpack(info.path, data, MAX_WHOLE)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise Refused(
            "ObjectUnreadable",
            f"{store.uri.rstrip('/')}/{info.path} cannot be unpacked ({error}); upload it again or exclude it with `include`",
        ) from error
    if len(content) > MAX_WHOLE:
        raise _too_large(store, info)
    return content


def _unpack(path: str, data: bytes, limit: int) -> bytes:
    """At most limit + 1 bytes: the caller sees that there are more."""
    if is_compressed(path) and not data:
        raise EOFError("it is empty; a packed empty file is longer")
    if path.endswith(_GZIP):
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit + 1)
    if path.endswith(_ZSTD):
        return _unpack_zstd(data, limit)
    return data


def _unpack_zstd(data: bytes, limit: int) -> bytes:
    """All frames. Raises EOFError for a truncated one, which zstandard's reader accepts."""
    out = bytearray()
    while data and len(out) <= limit:
        frame = zstandard.ZstdDecompressor().decompressobj()
        for start in range(0, len(data), _CHUNK):
            out += frame.decompress(data[start : start + _CHUNK])
            if frame.eof or len(out) > limit:
                data = frame.unused_data + data[start + _CHUNK :]
                break
        else:
            raise EOFError("the last frame is not complete")
    return bytes(out)


def _too_large(store: Store, info: ObjectInfo) -> Refused:
    return Refused(
        "ObjectTooLarge",
        f"{store.uri.rstrip('/')}/{info.path} holds more than {MAX_WHOLE >> 20} MiB and can only be read whole; "
        "split it, or store it as Parquet or unpacked",
    )
