"""The block index: per block, where every readable sample is and how many tokens it has. Loaders write it, membership reads it.

Stored as one object per block, `index/<key>.npz`, content-keyed, so that every job over the same data reuses it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from coxswain.block import BlockEntry as BlockEntry  # apart: who only passes blocks on need not wait for numpy


class BlockIndex(msgspec.Struct, frozen=True):
    """Per readable sample of a block: its place (row in the row group, byte offset in the block) and its tokens, EOS included."""

    at: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    rejected: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))  # where: not decodable


def block_key(entry: BlockEntry, tokenizer: str, format_key: str) -> str:
    """Names a block's content under a tokenizer (`tokenizer` is its hash) and the way it is read (format, text field)."""
    what = (
        entry.path,
        entry.ordinal,
        entry.offset,
        entry.size,
        entry.object_size,
        entry.etag,
        tokenizer,
        format_key,
        1,
    )
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def fingerprint(blocks: Iterable[BlockEntry]) -> str:
    """Names the content of a source as it was indexed."""
    content = [(b.key, b.samples, b.tokens) for b in blocks]
    return "sha256:" + hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def object_key(key: str) -> str:
    return f"index/{key[:2]}/{key}.npz"


def encode(index: BlockIndex) -> bytes:
    out = io.BytesIO()
    at, lengths, rejected = index.at.astype("<i8"), index.lengths.astype("<u4"), index.rejected.astype("<i8")
    np.savez_compressed(out, at=at, lengths=lengths, rejected=rejected)
    return out.getvalue()


TORN = (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error)
"""What `decode` raises for an object that is damaged or something else."""


def decode(data: bytes) -> BlockIndex:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return BlockIndex(at=arrays["at"], lengths=arrays["lengths"], rejected=arrays["rejected"])
