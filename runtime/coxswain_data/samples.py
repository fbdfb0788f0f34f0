"""Random access to tokenised samples: index and block on local disk, tokens in memory, each cache bounded in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused
from coxswain.index import BlockEntry, block_key
from coxswain.lru_cache import LRUCache
from coxswain_data.formats.base import Block
from coxswain_data.indexer import block_index
from coxswain_data.open_sources import OpenSources
from coxswain_data.tokenizer import ForeignToken, token_ids
from coxswain_link.store import Store

Tokens = NDArray[np.int32]
Places = NDArray[np.void]
_PLACE = np.dtype([("at", np.int64), ("tokens", np.uint32)])  # of a sample in its block

TOKEN_BYTES = 64 << 20  # samples whose pieces are in flight
LONG = (
    16 << 20
)  # bytes of tokens from which a sample is on local disk: its pieces are in many steps, and two would not fit
_ON_DISK = 16  # what is on disk takes this part of its size of the budget
_BLOCK_FILES, _INDEX_FILES = 1 / 2, 3 / 8  # of the files that the process may open


class Samples:
    """Tokens of any sample of the open sources. One thread reads and tokenises at a time.

    Blocks and their indexes stay on local disk while their window of the order is drawn (membership/order.py), so
    that each is read once: a window of every source has to fit into the spool.
    """

    def __init__(
        self, open_sources: OpenSources, store: Store, on_sample: Callable[[str], None] = lambda source: None
    ) -> None:
        self._open_sources, self._store, self._on_sample = open_sources, store, on_sample
        self._lock = threading.Lock()
        self._tokens: LRUCache[tuple[str, int], Tokens] = LRUCache(TOKEN_BYTES, _cost)
        self._spool = spool = open_sources.spool
        self._blocks: LRUCache[tuple[str, str], Block] = LRUCache(
            lambda: spool.budget, lambda b: b.nbytes, spool.most(_BLOCK_FILES)
        )
        self._places: LRUCache[str, Places] = LRUCache(
            lambda: spool.budget, lambda places: places.nbytes, spool.most(_INDEX_FILES)
        )

    @property
    def cached_bytes(self) -> int:
        return self._tokens.used

    def tokens(self, source: str, index: int) -> Tokens:
        """All token ids of a sample, EOS included.

        Raises Refused (SourceChanged) if the index differs.
        """
        with self._lock:
            return self._tokens.get((source, index), lambda: self._held(self._tokenised(source, index)))

    def lengths(self, source: str, entry: BlockEntry) -> NDArray[np.uint32]:
        """Token counts of the samples of a block. Raises as `tokens`."""
        with self._lock:
            return self._index(source, entry)["tokens"]

    def _held(self, tokens: Tokens) -> Tokens:
        return tokens if tokens.nbytes < LONG else self._spool.hold_array(tokens)

    def _tokenised(self, source: str, index: int) -> Tokens:
        block_map = self._open_sources.block_map(source)
        block, nth = block_map.locate(index)
        entry = block_map.blocks[block]
        at, length = self._index(source, entry)[nth].tolist()
        tokens = self._encoded(source, entry, at)
        if len(tokens) != length:
            raise self._open_sources.source(source).changed(
                entry.path, f"sample {index} has {len(tokens)} tokens and was indexed with {length}"
            )
        self._on_sample(source)
        return tokens

    def _encoded(self, source: str, entry: BlockEntry, at: int) -> Tokens:
        block = self._blocks.get((source, entry.key), lambda: self._open_sources.source(source).read(entry))
        try:
            return token_ids(self._open_sources.tokenizer(source), block.text(at))
        except (ForeignToken, ValueError) as error:
            raise self._open_sources.source(source).changed(
                entry.path, f"decoded when it was indexed and does not now (at {at}: {error})"
            ) from error

    def _index(self, source: str, entry: BlockEntry) -> Places:
        return self._places.get(entry.key, lambda: self._read_index(source, entry))

    def _read_index(self, source: str, entry: BlockEntry) -> Places:
        """Reads the index from the store; builds it from the same content if deleted."""
        self._check_tokenizer(source, entry)
        index = block_index(self._open_sources.source(source), self._open_sources.tokenizer(source), self._store, entry)
        if len(index.at) != entry.samples:
            raise self._open_sources.source(source).changed(
                entry.path, f"block {entry.ordinal} has {len(index.at)} samples and was indexed with {entry.samples}"
            )
        places = np.empty(entry.samples, _PLACE)
        places["at"], places["tokens"] = index.at, index.lengths
        return self._spool.hold_array(places)

    def _check_tokenizer(self, source: str, entry: BlockEntry) -> None:
        """Refuses another tokenizer than the one that the index is named after."""
        tokenizer, format_key = self._open_sources.tokenizer(source), self._open_sources.source(source).format_key
        if entry.key != block_key(entry, tokenizer.hash, format_key):
            raise Refused(
                "TokenizerChanged",
                f"source {source!r} was indexed with another tokenizer than its present one; restore the former "
                "tokenizer, or start a new run with a fresh checkpoint.uri",
            )


def _cost(tokens: Tokens) -> int:
    return tokens.nbytes if tokens.nbytes < LONG else tokens.nbytes // _ON_DISK
