"""Blocks of many short documents: the index of each is read once while its window of the order is drawn."""

from __future__ import annotations

import gzip
import threading
from dataclasses import replace as replace_fields
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from obstore.store import LocalStore

from coxswain.block import BlockEntry
from coxswain.config import EvaluationConfig, MixConfig
from coxswain.index import BlockIndex, block_key, encode, object_key
from coxswain.membership.order import WINDOW, PassOrder, SourceView
from coxswain.membership.values import Sequence
from coxswain_coordinator.index.merge import Index, SourceIndex
from coxswain_coordinator.index.store import IndexStore
from coxswain_data.local import LocalData
from coxswain_data.source import open_source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.spool import Spool
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import BLOCKS, store_of
from tests.unit.coordinator_lead import leading, small
from tests.unit.membership_fakes import random_view, steps, stream
from tests.unit.membership_fakes import view as view_of
from tests.unit.test_data_formats import source as source_of

ROWS = 1 << 20  # pyarrow's own row group
LINE = b'{"text":"a"}\n'


class MeetingStore(Store):
    """Answers a GET of an index object, but for the first ones, once so many are asked for at the same time."""

    def __init__(self, folder: Path, together: int) -> None:
        super().__init__(LocalStore(prefix=folder, mkdir=True), folder.as_uri())
        self.met, self.asked, self.first = threading.Barrier(together, timeout=20), count(), together

    def get(self, key: str) -> bytes:
        if key.endswith(".npz") and next(self.asked) >= self.first:
            self.met.wait()
        return super().get(key)


class CountingStore(Store):
    """Counts the index objects that are read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(prefix=folder, mkdir=True), folder.as_uri())
        self.read = 0

    def get(self, key: str) -> bytes:
        self.read += key.endswith(".npz")
        return super().get(key)


class FewFiles(Spool):
    """Of a process that may open few files."""

    def most(self, part: float) -> int:
        return 32


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


@pytest.mark.looptime
@pytest.mark.parametrize("held_out", [0, 64])
async def test_a_new_coordinator_reads_the_windows_of_all_its_sources_side_by_side(tmp_path, held_out):
    """One after another, the 2,400 indexes of 300 sources kept it from its first plan for most of a minute.

    Two sources have six blocks each; those of its reports come first.
    """
    job = small(tmp_path, evaluation=EvaluationConfig(every_steps=4, tokens=held_out))
    store_of(job)
    async with leading(job, store=MeetingStore(tmp_path / "store", 2 * BLOCKS)) as lead:
        lead.index()
        lead.arrive()
        await lead.world()


def test_the_windows_of_blocks_of_one_document_are_fetched_together(tmp_path):
    """Of files with one document each, a window has eight documents: each of its indexes was a request to wait for."""
    fetched, view = [], view_of("texts", [[5]] * 1000)
    plain = stream([view], [1])
    fetching = replace_fields(stream([view], [1]), fetch=lambda blocks: fetched.append(len(blocks["texts"])))
    assert steps(fetching, 5) == steps(plain, 5)
    assert fetched == [8, 64, 64, 64]


@given(st.integers(0, 10_000))
def test_every_block_is_fetched_before_its_lengths_are_asked_for(seed):
    fetched: set[tuple[str, int]] = set()

    def asked(view: SourceView, block: int) -> np.ndarray:
        assert (view.name, block) in fetched
        return view.lengths(block)

    views = [random_view(name, seed) for name in ("code", "docs")]
    watched = [SourceView(view.name, view.counts, partial(asked, view)) for view in views]
    fetching = replace_fields(
        stream(watched, [2, 1], held_out=0, passes=2),
        fetch=lambda blocks: fetched.update((name, block) for name, found in blocks.items() for block in found),
    )
    assert steps(fetching, 20) == steps(stream(views, [2, 1], passes=2), 20)


def test_an_index_that_is_kept_is_not_read_again_where_it_is_in_the_next_window_too(tmp_path):
    store = CountingStore(tmp_path / "run")
    entries = [BlockEntry(f"{n}", 0, 0, 1, 1, "e", 8, 0, 16, f"k{n}") for n in range(4)]
    for entry in entries:
        store.put(object_key(entry.key), encode(index_of(8, 0)))
    held = IndexStore(store)
    for entry in entries:
        held.fetch([entry])
    held.fetch(entries)
    assert store.read == 4


def test_what_is_fetched_ahead_drives_nothing_out(tmp_path):
    """Where few files may be open, the rest of a window is read when it is asked for."""
    store, spool = CountingStore(tmp_path / "run"), FewFiles(tmp_path)
    entries = [BlockEntry(f"{n}", 0, 0, 1, 1, "e", 8, 0, 16, f"k{n}") for n in range(64)]
    for entry in entries:
        store.put(object_key(entry.key), encode(index_of(8, 0)))
    held = IndexStore(store, spool)
    held.fetch(entries)
    assert store.read == 32
    assert [held.lengths(entry).tolist() for entry in entries[:32]] == [[2] * 8] * 32
    assert store.read == 32


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
