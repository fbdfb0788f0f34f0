"""Builds the block index of a share: position and token count of each readable sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.index import TORN, BlockEntry, BlockIndex, block_key, check_labels, decode, encode, object_key
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed
from coxswain_data.formats.base import Block
from coxswain_data.source import Source
from coxswain_data.tokenizer import ForeignToken, Tokenizer, token_ids
from coxswain_link.store import CorruptObject, NotFound, Store

_NAMED_PLACES = 3
_AT_ONCE = 16  # index objects that are read side by side


def index_share(source: Source, tokenizer: Tokenizer, store: Store, share: LoaderShare) -> Indexed:
    """Indexes every `share.shares`-th block; reuses what the store has under the same key.

    Raises Refused: TooManyRejected, SourceEmpty, and the source's own.
    """
    mine = source.blocks(share.share, share.shares)
    indexed: list[BlockEntry] = []
    rejects = _Rejects(source)
    for keyed, found in _looked_up(source, tokenizer, store, mine):
        index = found or _new_index(source, tokenizer, store, keyed)
        rejects.add(keyed, index)
        indexed.append(counted(keyed, index))
    if share.shares == 1 and not any(b.samples for b in indexed):
        raise Refused(
            "SourceEmpty",
            f"source {source.config.name!r} at {source.config.uri} has no readable sample that is not empty; "
            "check uri, include and textField",
        )
    if share.shares == 1:
        check_labels(source.config.name, indexed)
    return Indexed(share=share, blocks=tuple(indexed), tokenizer=tokenizer.hash, vocabulary=tokenizer.vocabulary)


def _looked_up(
    source: Source, tokenizer: Tokenizer, store: Store, blocks: Sequence[BlockEntry]
) -> Iterator[tuple[BlockEntry, BlockIndex | None]]:
    """Each block with its key, and its index if the store has it. Read side by side: every restart of a job reads them all."""

    def look_up(entry: BlockEntry) -> tuple[BlockEntry, BlockIndex | None]:
        keyed = _keyed(source, tokenizer, store, entry)
        return keyed, _stored(store, keyed)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(blocks), _AT_ONCE):
            yield from pool.map(look_up, blocks[start : start + _AT_ONCE])


def _keyed(source: Source, tokenizer: Tokenizer, store: Store, entry: BlockEntry) -> BlockEntry:
    """With its key. What an earlier release indexed keeps the key of then: its runs go on."""
    now, old = _with_key(source, tokenizer, entry), source.as_before(entry)
    if old is None or store.exists(object_key(now.key)):
        return now
    before = _with_key(source, tokenizer, old)
    return before if store.exists(object_key(before.key)) else now


def _with_key(source: Source, tokenizer: Tokenizer, entry: BlockEntry) -> BlockEntry:
    return replace(entry, key=block_key(entry, tokenizer.hash, source.format_key))


def messages(indexed: Indexed, most: int = BLOCKS_IN_MESSAGE) -> list[Indexed]:
    """The index of a share in messages of at most `most` blocks."""
    blocks = indexed.blocks
    parts = max(1, -(-len(blocks) // most))
    return [replace(indexed, blocks=blocks[n * most : (n + 1) * most], part=n, parts=parts) for n in range(parts)]


def block_index(source: Source, tokenizer: Tokenizer, store: Store, entry: BlockEntry) -> BlockIndex:
    """From the store, or built and stored."""
    return _stored(store, entry) or _new_index(source, tokenizer, store, entry)


def _stored(store: Store, entry: BlockEntry) -> BlockIndex | None:
    """None: it is to be built, also where the object is torn or foreign. Thread-safe."""
    try:
        return decode(store.get(object_key(entry.key)))
    except (NotFound, CorruptObject, *TORN):
        return None


def _new_index(source: Source, tokenizer: Tokenizer, store: Store, entry: BlockEntry) -> BlockIndex:
    index = _built(source, tokenizer, entry)
    store.put(object_key(entry.key), encode(index))
    return index


def _built(source: Source, tokenizer: Tokenizer, entry: BlockEntry) -> BlockIndex:
    try:
        return build(source.read(entry), tokenizer)
    except ForeignToken as error:
        raise Refused(
            "TokenizerMismatch",
            f"source {source.config.name!r}: {source.where(entry.path)} {error}; "
            "give the source the tokenizer that its tokens were made with",
        ) from error


def build(block: Block, tokenizer: Tokenizer) -> BlockIndex:
    """Tokenises a whole block. An empty sample is neither indexed nor rejected."""
    at: list[int] = []
    lengths: list[int] = []
    rejected: list[int] = []
    for sample in block.samples():
        if sample.text is None:
            rejected.append(sample.at)
        elif len(sample.text):
            at.append(sample.at)
            lengths.append(len(token_ids(tokenizer, sample.text)))
    return BlockIndex(np.array(at, np.int64), np.array(lengths, np.uint32), np.array(rejected, np.int64))


def counted(entry: BlockEntry, index: BlockIndex) -> BlockEntry:
    return replace(
        entry, samples=len(index.at), rejected=len(index.rejected), tokens=int(index.lengths.sum(dtype=np.int64))
    )


class _Rejects:
    """Counts the samples that do not decode, and refuses the source beyond its limit."""

    def __init__(self, source: Source) -> None:
        self._source, self._count = source, 0
        self._places: list[str] = []

    def add(self, entry: BlockEntry, index: BlockIndex) -> None:
        self._count += len(index.rejected)
        self._places += self._named(entry, index.rejected[: _NAMED_PLACES - len(self._places)].tolist())
        limit = self._source.config.max_rejected
        if self._count > limit:
            raise Refused(
                "TooManyRejected",
                f"source {self._source.config.name!r}: {self._count} samples do not decode (bad UTF-8, bad JSON, or "
                f"{self._source.config.text_field!r} missing or null) and {limit} are allowed; the first: "
                f"{'; '.join(self._places)}. Repair them, or raise maxRejected of the source",
            )

    def _named(self, entry: BlockEntry, rejected: Iterable[int]) -> list[str]:
        where, format_ = self._source.where(entry.path), self._source.config.format
        if format_ == "Parquet":
            return [f"{where} row {at} of row group {entry.ordinal}" for at in rejected]
        return [f"{where} at byte {entry.offset + at}" for at in rejected]
