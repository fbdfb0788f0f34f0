"""Opens the sources and tokenizers of a mix on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from coxswain.config import EndpointConfig, MixConfig, SourceConfig, TokenizerConfig
from coxswain.index import BlockEntry
from coxswain_data.block_map import BlockMap
from coxswain_data.source import Source, open_source
from coxswain_data.tokenizer import Tokenizer, open_tokenizer
from coxswain_link.spool import Spool
from coxswain_link.store import Store

OpenSource = Callable[[SourceConfig, Path | None, Spool], Source]


class OpenSources:
    """Sources, tokenizers (one per configuration) and block maps, by the source's name in the mix.

    `blocks` returns the whole index of a source, in index order.
    """

    def __init__(
        self,
        mix: MixConfig,
        secrets_dir: Path | None,
        blocks: Callable[[str], Sequence[BlockEntry]],
        open_one: OpenSource = open_source,
        index: Store | None = None,
    ) -> None:
        """`index`: where block indexes are, and digests of files."""
        self._configs, self._index = {s.name: s for s in mix.sources}, index
        self._secrets_dir, self._blocks, self._open_one = secrets_dir, blocks, open_one
        self.spool = Spool()
        self._sources: dict[str, Source] = {}
        self._tokenizers: dict[tuple[TokenizerConfig, EndpointConfig], Tokenizer] = {}
        self._block_maps: dict[str, BlockMap] = {}

    def source(self, name: str) -> Source:
        if name not in self._sources:
            self._sources[name] = self._open_one(self._configs[name], self._secrets_dir, self.spool)
            if self._index is not None:
                self._sources[name].keep_identities(self._index)
        return self._sources[name]

    def tokenizer(self, name: str) -> Tokenizer:
        config = self._configs[name]
        key = (config.tokenizer, config.endpoint)
        if key not in self._tokenizers:
            self._tokenizers[key] = open_tokenizer(*key, self._secrets_dir)
        return self._tokenizers[key]

    def block_map(self, name: str) -> BlockMap:
        if name not in self._block_maps:
            self._block_maps[name] = BlockMap(self._blocks(name))
        return self._block_maps[name]

    @property
    def last_error(self) -> str:
        """The error of a source's store at present; empty: none. Thread-safe."""
        return next(filter(None, (source.last_error for source in tuple(self._sources.values()))), "")

    @property
    def open_objects(self) -> int:
        return sum(s.open_objects for s in self._sources.values())
