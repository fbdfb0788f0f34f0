"""The block index: the place and token count of every readable sample of a block.

Loaders write it, membership reads it. Each block has one object, `index/<key>.npz`, keyed by
content: every job over the same data reuses it.
"""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from coxswain.block import BlockEntry as BlockEntry  # a module of its own: it needs no numpy
from coxswain.errors import Refused
from coxswain.planlog import LoaderShare
from coxswain.structs import prepare

_HASHED = 1024  # blocks that are hashed together


class BlockIndex(msgspec.Struct, frozen=True):
    """Per readable sample of a block: its place and its tokens, EOS included.

    A place is a row in the row group or a byte offset in the block.
    """

    at: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    rejected: NDArray[np.int64]  # places


class IndexedShare(NamedTuple):
    """A share of a source that is indexed, or some of its blocks that follow each other; there may be millions."""

    share: LoaderShare
    blocks: Sequence[BlockEntry]
    tokenizer: str  # its hash
    vocabulary: int
    listed: int  # blocks of all shares, as the share's loader listed them; 0: not said


def block_key(entry: BlockEntry, tokenizer: str, format_key: str) -> str:
    """Hashes a block's content, its tokenizer (`tokenizer` is a hash) and how it is read."""
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
    """Hashes the content of a source as it was indexed: the JSON of a list of (key, samples, tokens), in pieces."""
    digest, comma = hashlib.sha256(b"["), b""
    content = ((b.key, b.samples, b.tokens) for b in blocks)
    while some := list(islice(content, _HASHED)):
        digest.update(comma + msgspec.json.encode(some)[1:-1])
        comma = b","
    digest.update(b"]")
    return f"sha256:{digest.hexdigest()}"


def check_labels(source: str, blocks: Iterable[BlockEntry]) -> None:
    """Refuses a source of which nothing can be predicted: each of its documents has one token, the end of text."""
    if not any(b.tokens > b.samples for b in blocks):
        raise Refused(
            "SourceEmpty",
            f"source {source!r}: its tokenizer gives none of its documents a token before the end of text; check textField, "
            "and that the tokenizer is one for this text",
        )


def object_key(key: str) -> str:
    return f"index/{key[:2]}/{key}.npz"


def encode(index: BlockIndex) -> bytes:
    out = io.BytesIO()
    at, lengths, rejected = index.at.astype("<i8"), index.lengths.astype("<u4"), index.rejected.astype("<i8")
    np.savez_compressed(out, at=at, lengths=lengths, rejected=rejected)
    return out.getvalue()


TORN = (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error)
"""What `decode` raises for a damaged object, or one that is no index."""


_DECODING = threading.Lock()
"""numpy parses headers by `ast`, and CPython 3.11 counts the depth of that for all threads together: SystemError."""


def decode(data: bytes) -> BlockIndex:
    """Runs no code: numpy refuses pickled objects unless they are asked for. Thread-safe."""
    with _DECODING, np.load(io.BytesIO(data)) as arrays:
        return BlockIndex(at=arrays["at"], lengths=arrays["lengths"], rejected=arrays["rejected"])


def decode_lengths(data: bytes) -> NDArray[np.uint32]:
    """The lengths alone, in half the time. Thread-safe."""
    with _DECODING, np.load(io.BytesIO(data)) as arrays:
        lengths: NDArray[np.uint32] = arrays["lengths"]
        return lengths


prepare(__name__)
