"""A loader without sockets: index and tokens of a mix in one process. The reference that the distributed path must equal."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

from coxswain.config import MixConfig
from coxswain.index import BlockEntry
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain_data.indexer import index_share
from coxswain_data.library import Library
from coxswain_data.samples import Samples, Tokens
from coxswain_link.store import Store


class LocalData:
    """Indexes a source when it is first asked for, into `store`. Raises Refused as indexer and samples do."""

    def __init__(self, mix: MixConfig, store: Store, secrets_dir: Path | None = None) -> None:
        self._store = store
        self._library = Library(mix, secrets_dir, self._index)
        self._samples = Samples(self._library, store)

    def blocks(self, source: str) -> tuple[BlockEntry, ...]:
        """The whole index of a source."""
        return self._library.catalog(source).blocks

    def tokens(self, sequence: Sequence) -> Tokens:
        """The tokens of a sequence."""
        return self._samples.tokens(sequence.source, sequence.index)[sequence.start : sequence.stop]

    def _index(self, source: str) -> tuple[BlockEntry, ...]:
        whole = LoaderShare("local", source, 0, 1)
        return index_share(self._library.source(source), self._library.tokenizer(source), self._store, whole).blocks


def materialise(data: LocalData, sequences: Seq[Sequence]) -> list[Tokens]:
    """The tokens of each sequence, as loaders would serve them."""
    return [data.tokens(s) for s in sequences]
