"""Random access to tokenised samples: index, block and tokens, each in a cache bounded in bytes."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused
from coxswain.index import BlockEntry, BlockIndex, block_key
from coxswain.lru_cache import LRUCache
from coxswain_data.formats.base import Block
from coxswain_data.indexer import block_index
from coxswain_data.open_sources import OpenSources
from coxswain_data.tokenizer import ForeignToken, token_ids
from coxswain_link.store import Store

Tokens = NDArray[np.int32]

TOKEN_BYTES = 64 << 20  # samples whose pieces are in flight
INDEX_BYTES = 64 << 20
_BLOCKS = 8192  # at most: small ones are in memory, and each larger one is a mapping, which keeps a file open


def open_files() -> int:
    """How many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Samples:
    """Tokens of any sample of the open sources. One thread reads and tokenises at a time.

    Blocks stay on local disk while their window of the order is drawn (membership/order.py), so
    that each is read once: a window of every source has to fit into the spool.
    """

    def __init__(
        self, open_sources: OpenSources, store: Store, on_sample: Callable[[str], None] = lambda source: None
    ) -> None:
        self._open_sources, self._store, self._on_sample = open_sources, store, on_sample
        self._lock = threading.Lock()
        self._tokens: LRUCache[tuple[str, int], Tokens] = LRUCache(TOKEN_BYTES, lambda t: t.nbytes)
        self._blocks: LRUCache[tuple[str, str], Block] = LRUCache(
            lambda: open_sources.spool.budget, lambda b: b.nbytes, min(_BLOCKS, open_files() // 2)
        )
        self._indexes: LRUCache[str, BlockIndex] = LRUCache(INDEX_BYTES, lambda i: i.at.nbytes + i.lengths.nbytes)

    @property
    def cached_bytes(self) -> int:
        return self._tokens.used

    def tokens(self, source: str, index: int) -> Tokens:
        """All token ids of a sample, EOS included.

        Raises Refused (SourceChanged) if the index differs.
        """
        with self._lock:
            return self._tokens.get((source, index), lambda: self._tokenised(source, index))

    def _tokenised(self, source: str, index: int) -> Tokens:
        block_map = self._open_sources.block_map(source)
        block, nth = block_map.locate(index)
        entry = block_map.blocks[block]
        places = self._indexes.get(entry.key, lambda: self._index(source, entry))
        tokens = self._encoded(source, entry, int(places.at[nth]))
        if len(tokens) != places.lengths[nth]:
            raise self._open_sources.source(source).changed(
                entry.path, f"sample {index} has {len(tokens)} tokens and was indexed with {places.lengths[nth]}"
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

    def _index(self, source: str, entry: BlockEntry) -> BlockIndex:
        """Reads the index from the store; builds it from the same content if deleted."""
        self._check_tokenizer(source, entry)
        index = block_index(self._open_sources.source(source), self._open_sources.tokenizer(source), self._store, entry)
        if len(index.at) != entry.samples:
            raise self._open_sources.source(source).changed(
                entry.path, f"block {entry.ordinal} has {len(index.at)} samples and was indexed with {entry.samples}"
            )
        return index

    def _check_tokenizer(self, source: str, entry: BlockEntry) -> None:
        """Refuses another tokenizer than the one that the index is named after."""
        tokenizer, format_key = self._open_sources.tokenizer(source), self._open_sources.source(source).format_key
        if entry.key != block_key(entry, tokenizer.hash, format_key):
            raise Refused(
                "TokenizerChanged",
                f"source {source!r} was indexed with another tokenizer than its present one; restore the former "
                "tokenizer, or start a new run with a fresh checkpoint.uri",
            )
