"""Blocks of many short documents: the index of each is read once while its window of the order is drawn."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from obstore.store import LocalStore

from coxswain.block import BlockEntry
from coxswain.config import MixConfig
from coxswain.index import BlockIndex, block_key, encode, object_key
from coxswain.membership.order import WINDOW, PassOrder
from coxswain.membership.values import Sequence
from coxswain_coordinator.index.merge import Index, SourceIndex
from coxswain_coordinator.index.store import IndexStore
from coxswain_data.local import LocalData
from coxswain_data.source import open_source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.store import Store
from tests.unit.test_data_formats import source as source_of

ROWS = 1 << 20  # pyarrow's own row group
LINE = b'{"text":"a"}\n'


class CountingStore(Store):
    """Counts the index objects that are read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(prefix=folder, mkdir=True), folder.as_uri())
        self.read = 0

    def get(self, key: str) -> bytes:
        self.read += key.endswith(".npz")
        return super().get(key)


def index_of(rows: int, step: int) -> BlockIndex:
    none = np.array([], np.int64)
    return BlockIndex(np.arange(rows, dtype=np.int64) * step, np.full(rows, 2, np.uint32), none)


def test_the_coordinator_reads_each_index_of_the_windows_of_three_sources_once(tmp_path):
    store, content = CountingStore(tmp_path / "run"), encode(index_of(ROWS, 0))
    sources = []
    for name in ("a", "b", "c"):
        entries = [BlockEntry(f"{n}", 0, 0, 1, 1, "e", ROWS, 0, 2 * ROWS, f"{name}{n}") for n in range(WINDOW)]
        for entry in entries:
            store.put(object_key(entry.key), content)
        sources.append(SourceIndex(name, tuple(entries)))
    views = Index(tuple(sources), 257).views(IndexStore(store).lengths)
    orders = [PassOrder(1, view, 0) for view in views.values()]
    drawn = [order.at(n)[1] for n in range(0, 4096, 1024) for order in orders]
    assert (set(drawn), store.read) == ({2}, 3 * WINDOW)


def test_a_loader_reads_each_index_of_a_window_of_short_documents_once(tmp_path):
    rows = 720_000
    (tmp_path / "s").mkdir()
    for n in range(WINDOW):
        (tmp_path / f"s/{n}.jsonl.gz").write_bytes(gzip.compress(LINE * rows, 1))
    source = source_of(tmp_path / "s")
    store, content = CountingStore(tmp_path / "run"), encode(index_of(rows, len(LINE)))
    entries = [replace(entry, samples=rows, tokens=2 * rows) for entry in open_source(source.config).blocks()]
    keyed = [replace(e, key=block_key(e, BytesTokenizer().hash, source.format_key)) for e in entries]
    for entry in keyed:
        store.put(object_key(entry.key), content)
    mix = MixConfig(name="m", seed=1, sources=(source.config,))
    data = LocalData(mix, store, known={"mine": tuple(keyed)})
    order, read = PassOrder(1, data.views()["mine"], 0), []
    for n in range(0, 4096, 64):
        index, length = order.at(n)
        read.append(data.tokens(Sequence("mine", 0, index, 0, length, length)).tolist())
    assert read == [[ord("a"), BytesTokenizer().vocabulary - 1]] * 64
    assert store.read == WINDOW
