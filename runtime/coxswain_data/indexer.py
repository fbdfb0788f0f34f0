"""Builds the block index of a share: position and token count of each readable sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter

import numpy as np
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.index import (
    TORN,
    BlockEntry,
    BlockIndex,
    IndexedShare,
    block_key,
    check_labels,
    decode,
    encode,
    object_key,
)
from coxswain.packed import Packed
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed
from coxswain_data.formats.base import Block
from coxswain_data.index_record import BLOCKS, Counted, ShareRecord, ShareRecords, StoredIndexes
from coxswain_data.source import Source
from coxswain_data.tokenizer import ForeignToken, Tokenizer, token_ids
from coxswain_link.store import REQUESTS_AT_ONCE, CorruptObject, NotFound, Store

_NAMED_PLACES = 3


def index_share(
    source: Source, tokenizer: Tokenizer, store: Store, share: LoaderShare, stored: StoredIndexes | None = None
) -> IndexedShare:
    """Indexes every `share.shares`-th block; reuses what the store has under the same key.

    Raises Refused: TooManyRejected, SourceEmpty, and the source's own. `stored`: lists that other shares need, too.
    """
    alike = f"{source.config.uri} {source.format_key} {tokenizer.hash}"
    records = ShareRecords(stored or StoredIndexes(store), alike)
    mine, listed = source.share(share.share, share.shares)
    blocks = Packed(_indexed(source, tokenizer, store, mine, records), BlockEntry)
    if share.shares == 1 and not any(b.samples for b in blocks):
        raise Refused(
            "SourceEmpty",
            f"source {source.config.name!r} at {source.config.uri} has no readable sample that is not empty; "
            "check uri, include and textField",
        )
    if share.shares == 1:
        check_labels(source.config.name, blocks)
    return IndexedShare(share, blocks, tokenizer.hash, tokenizer.vocabulary, listed)


def _indexed(
    source: Source, tokenizer: Tokenizer, store: Store, listed: Packed[BlockEntry], records: ShareRecords
) -> Iterator[BlockEntry]:
    """A record at a time: a share may have millions of blocks."""
    rejects = _Rejects(source)
    for start in range(0, len(listed), BLOCKS):
        named = [_with_key(source, tokenizer, entry) for entry in listed[start : start + BLOCKS]]
        record = ShareRecord(records, named)
        _count(source, tokenizer, store, named, record, rejects)
        record.save()
        yield from record.blocks()


def _count(
    source: Source,
    tokenizer: Tokenizer,
    store: Store,
    named: Sequence[BlockEntry],
    record: ShareRecord,
    rejects: _Rejects,
) -> None:
    """Adds to the record what it lacks, from the index of each block. Raises Refused (TooManyRejected)."""
    if not rejects.may_have(record.rejected):
        record.forget()
    rejects.count += record.rejected
    missing = [entry for entry in named if entry.key not in record]
    for entry, (keyed, found) in zip(missing, _looked_up(source, tokenizer, store, missing), strict=True):
        index, size = found or _new_index(source, tokenizer, store, keyed)
        rejects.add(keyed, index)
        record.add(entry.key, counted(keyed, index, size))


_Stored = tuple[BlockIndex, int]
"""The index of a block, and the bytes of its object."""


def _looked_up(
    source: Source, tokenizer: Tokenizer, store: Store, blocks: Sequence[BlockEntry]
) -> Iterator[tuple[BlockEntry, _Stored | None]]:
    """Each block with its key, and its index if the store has it. Read side by side: there may be millions."""

    def look_up(entry: BlockEntry) -> tuple[BlockEntry, _Stored | None]:
        keyed = _keyed(source, tokenizer, store, entry)
        return keyed, _stored(store, keyed)

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for start in range(0, len(blocks), REQUESTS_AT_ONCE):
            yield from pool.map(look_up, blocks[start : start + REQUESTS_AT_ONCE])


def _keyed(source: Source, tokenizer: Tokenizer, store: Store, now: BlockEntry) -> BlockEntry:
    """With its key. What an earlier release indexed keeps the key of then: its runs go on."""
    old = source.as_before(now)
    if old is None or store.exists(object_key(now.key)):
        return now
    before = _with_key(source, tokenizer, old)
    return before if store.exists(object_key(before.key)) else now


def _with_key(source: Source, tokenizer: Tokenizer, entry: BlockEntry) -> BlockEntry:
    return replace(entry, key=block_key(entry, tokenizer.hash, source.format_key))


def messages(indexed: IndexedShare | Indexed, most: int = BLOCKS_IN_MESSAGE) -> Iterator[Indexed]:
    """The index of a share in messages of at most `most` blocks."""
    blocks = indexed.blocks
    parts = max(1, -(-len(blocks) // most))
    for part in range(parts):
        some = tuple(blocks[part * most : (part + 1) * most])
        whole = indexed.tokenizer, indexed.vocabulary
        yield Indexed(indexed.share, some, *whole, part=part, parts=parts, listed=indexed.listed)


def block_index(source: Source, tokenizer: Tokenizer, store: Store, entry: BlockEntry) -> BlockIndex:
    """From the store, or built and stored."""
    return (_stored(store, entry) or _new_index(source, tokenizer, store, entry))[0]


def _stored(store: Store, entry: BlockEntry) -> _Stored | None:
    """None: it is to be built, also where the object is torn or foreign. Thread-safe."""
    try:
        data = store.get(object_key(entry.key))
        return decode(data), len(data)
    except (NotFound, CorruptObject, *TORN):
        return None


def _new_index(source: Source, tokenizer: Tokenizer, store: Store, entry: BlockEntry) -> _Stored:
    index = _built(source, tokenizer, entry)
    data = encode(index)
    store.put(object_key(entry.key), data)
    return index, len(data)


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


def counted(entry: BlockEntry, index: BlockIndex, size: int) -> Counted:
    tokens, shortest = int(index.lengths.sum(dtype=np.int64)), int(index.lengths.min()) if index.lengths.size else 0
    return Counted(entry.key, entry.etag, len(index.at), len(index.rejected), tokens, shortest, size)


class _Rejects:
    """Counts the samples that do not decode, and refuses the source beyond its limit."""

    def __init__(self, source: Source) -> None:
        self._source, self.count = source, 0
        self._first: list[tuple[BlockEntry, int]] = []

    def may_have(self, more: int) -> bool:
        return self.count + more <= self._source.config.max_rejected

    def add(self, entry: BlockEntry, index: BlockIndex) -> None:
        self.count += len(index.rejected)
        self._first += [(entry, at) for at in index.rejected[: _NAMED_PLACES - len(self._first)].tolist()]
        limit = self._source.config.max_rejected
        if self.count > limit:
            raise Refused(
                "TooManyRejected",
                f"source {self._source.config.name!r}: {self.count} samples do not decode and {limit} are allowed; the first: "
                f"{'; '.join(self._named())}. Name another textField, repair them, or raise maxRejected "
                "of the source",
            )

    def _named(self) -> Iterator[str]:
        """Reads each block once: one of Parquet may be large."""
        row = self._source.config.format == "Parquet"
        for entry, rejected in groupby(self._first, itemgetter(0)):
            where, block = self._source.where(entry.path), self._source.read(entry)
            for _, at in rejected:
                place = f"row {at} of row group {entry.ordinal}" if row else f"at byte {entry.offset + at}"
                yield f"{where} {place}{_fault(block, at)}"


def _fault(block: Block, at: int) -> str:
    """In parentheses. Empty where a tar sample has no text, or several."""
    try:
        block.text(at)
    except ValueError as error:
        return f" ({error})"
    return ""
