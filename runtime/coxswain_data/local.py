"""Index and tokens of a mix in one process: the reference that the distributed path must equal."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

import msgspec
import numpy as np

from coxswain.block import shortest_of
from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry
from coxswain.membership.order import SourceView
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain_data.indexer import index_share
from coxswain_data.open_sources import OpenSource, OpenSources
from coxswain_data.samples import Samples, Tokens
from coxswain_data.source import open_source
from coxswain_link.store import Store

Blocks = Seq[BlockEntry]


class LocalData:
    """Indexes a source on first use, into `store`. Raises Refused as indexer and samples do.

    `known`: indexes of sources that were listed before.
    """

    def __init__(
        self,
        mix: MixConfig,
        store: Store,
        secrets_dir: Path | None = None,
        known: Mapping[str, Blocks] | None = None,
        open_one: OpenSource = open_source,
    ) -> None:
        self._mix, self._store, self._known = mix, store, dict(known or {})
        self._open_sources = OpenSources(mix, secrets_dir, self._index, open_one, store)
        self._samples = Samples(self._open_sources, store)

    def blocks(self, source: str) -> Blocks:
        """The whole index of a source."""
        return self._open_sources.block_map(source).blocks

    def views(self) -> dict[str, SourceView]:
        """The sources as membership needs them."""
        return {s.name: self._view(s.name) for s in self._mix.sources}

    def vocabulary(self) -> int:
        """Number of token ids, EOS included.

        Raises Refused (TokenizerMismatch) when the sources differ.
        """
        found = {s.name: self._open_sources.tokenizer(s.name) for s in self._mix.sources}
        if len({t.hash for t in found.values()}) > 1:
            raise Refused(
                "TokenizerMismatch",
                f"sources {', '.join(sorted(found))} have different tokenizers; give them the same spec.tokenizer",
            )
        return next(iter(found.values())).vocabulary

    def tokens(self, sequence: Sequence) -> Tokens:
        """The tokens of a sequence."""
        return self._samples.tokens(sequence.source, sequence.index)[sequence.start : sequence.stop]

    def with_next(self, sequence: Sequence) -> Tokens:
        """The tokens of a sequence and the next one, if any: its last label."""
        return self.tokens(msgspec.structs.replace(sequence, stop=min(sequence.stop + 1, sequence.length)))

    def _index(self, source: str) -> Blocks:
        if source not in self._known:
            whole = LoaderShare("local", source, 0, 1)
            parts = self._open_sources.source(source), self._open_sources.tokenizer(source)
            self._known[source] = index_share(*parts, self._store, whole).blocks
        return self._known[source]

    def _view(self, source: str) -> SourceView:
        blocks = self.blocks(source)
        counts = np.array([b.samples for b in blocks], dtype=np.int64)
        return SourceView(source, counts, lambda nth: self._samples.lengths(source, blocks[nth]), shortest_of(blocks))


def materialise(data: LocalData, sequences: Seq[Sequence]) -> list[Tokens]:
    """The tokens of each sequence, as loaders would serve them."""
    return [data.tokens(s) for s in sequences]
