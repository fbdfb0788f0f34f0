"""A file is what its content is: copies and touched files are the same data, another content is not."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from obstore.store import LocalStore

from coxswain.errors import Refused
from coxswain.index import BlockEntry, fingerprint
from coxswain.planlog import LoaderShare
from coxswain_data import source as source_module
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.identity import FileIdentities
from coxswain_data.indexer import index_share
from coxswain_data.source import Source, open_source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.spool import Spool
from coxswain_link.store import CorruptObject, Store, StoreUnavailable, open_store
from tests.unit.test_data_index import config


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "corpus"
    path.mkdir()
    for name in ("a.txt", "b.txt"):
        (path / name).write_text(f"the text of {name}")
    return path


@pytest.fixture
def index(tmp_path) -> Store:
    return open_store(f"file://{tmp_path}/index", create=True)


def opened(folder, index: Store) -> Source:
    source = open_source(config(folder, "Text"))
    source.keep_identities(index)
    return source


def entries(folder, index: Store) -> tuple[BlockEntry, ...]:
    """As a process that starts now indexes it."""
    return index_share(opened(folder, index), BytesTokenizer(), index, LoaderShare("l", "mine", 0, 1)).blocks


def touch(path) -> None:
    os.utime(path, (1, 1))


def copy(path) -> None:
    """Another inode and another time."""
    shutil.copyfile(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [touch, copy])
def test_a_file_with_the_same_content_keeps_its_identity_and_is_read(folder, index, change):
    before, running = entries(folder, index), opened(folder, index)
    change(folder / "a.txt")
    assert entries(folder, index) == before
    assert [s.text for s in running.read(before[0]).samples()] == ["the text of a.txt"]


def archive(path: Path, letter: str) -> None:
    """Ten texts, each larger than what is read of a large archive at a time."""
    with tarfile.open(path, "w") as tar:
        for n in range(10):
            member = tarfile.TarInfo(f"{n}.txt")
            member.size = 1 << 20
            tar.addfile(member, io.BytesIO(letter.encode() * (1 << 20)))


def read_while_it_is_open(folder: Path, index: Store, change: Callable[[Path], object]) -> list[object]:
    """The texts of an archive that changes behind the first of them."""
    tar = msgspec.structs.replace(config(folder, "Tar"), include="*.tar", text_field="txt")
    mine = open_source(tar, sizes=Sizes(tar_whole=1 << 20))
    mine.keep_identities(index)
    (entry,) = mine.blocks()
    block = mine.read(entry)
    first, *others = [sample.at for sample in block.samples()]
    found = [block.text(first)]
    change(folder / "a.tar")
    return found + [block.text(at) for at in others]


@pytest.mark.parametrize("change", [touch, copy])
def test_a_large_archive_that_is_touched_while_it_is_read_is_the_same_content(folder, index, change):
    archive(folder / "a.tar", "a")
    assert read_while_it_is_open(folder, index, change) == ["a" * (1 << 20)] * 10


def test_a_large_archive_that_is_replaced_by_another_content_while_it_is_read_is_refused(folder, index):
    archive(folder / "a.tar", "a")
    with pytest.raises(Refused, match=r"a\.tar was replaced since it was listed"):
        read_while_it_is_open(folder, index, lambda path: archive(path, "b"))


def test_a_large_archive_that_is_deleted_while_it_is_read_is_refused(folder, index):
    archive(folder / "a.tar", "a")
    with pytest.raises(Refused, match=r"a\.tar was listed and is gone"):
        read_while_it_is_open(folder, index, Path.unlink)


def test_the_same_files_elsewhere_have_the_same_fingerprint(folder, index, tmp_path):
    shutil.copytree(folder, tmp_path / "elsewhere")
    other = open_store(f"file://{tmp_path}/other", create=True)
    assert fingerprint(entries(tmp_path / "elsewhere", other)) == fingerprint(entries(folder, index))


def test_another_content_of_the_same_length_is_refused_and_has_another_identity(folder, index):
    before, running = entries(folder, index), opened(folder, index)
    (folder / "a.txt").write_text("THE text of a.txt")
    touch(folder / "a.txt")
    with pytest.raises(Refused, match=r"a\.txt was indexed with 17 bytes"):
        running.read(before[0])
    after = entries(folder, index)
    assert (after[0].key != before[0].key, after[1]) == (True, before[1])


def test_a_process_that_starts_later_reads_no_file_that_is_as_it_was(folder, index, monkeypatch):
    entries(folder, index)
    read = []
    whole = Store.get_range
    monkeypatch.setattr(Store, "get_range", lambda store, key, *at: read.append(key) or whole(store, key, *at))
    touch(folder / "b.txt")
    assert len(opened(folder, index).blocks()) == 2
    assert read == ["b.txt"]


@pytest.mark.parametrize("torn", [b"", b"[]", b'{"a.txt": 7}', b"\xff"])
def test_digests_that_cannot_be_read_are_made_again(folder, index, torn):
    before = entries(folder, index)
    (kept,) = index.list("index/files/")
    index.put(kept.path, torn)
    assert entries(folder, index) == before


def test_digests_that_are_damaged_where_they_are_stored_are_made_again(folder, index, monkeypatch):
    before, whole = entries(folder, index), Store.get

    def get(store, key):
        if key.startswith("index/files/"):
            raise CorruptObject(key)
        return whole(store, key)

    monkeypatch.setattr(Store, "get", get)
    assert entries(folder, index) == before


def test_what_an_earlier_release_indexed_by_time_and_inode_keeps_its_keys(folder, tmp_path, monkeypatch):
    store = open_store(f"file://{tmp_path}/earlier", create=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(FileIdentities, "of", lambda _, file: file.etag)
        before = entries(folder, store)
    assert all("-" in entry.etag for entry in before)
    assert entries(folder, store) == before
    assert [s.text for s in opened(folder, store).read(before[1]).samples()] == ["the text of b.txt"]
    moved = msgspec.structs.replace(before[1], etag="another")
    with pytest.raises(Refused, match="was indexed"):
        opened(folder, store).read(moved)


def test_a_file_that_both_this_release_and_an_earlier_one_have_indexed_keeps_the_key_of_this_one(
    folder, tmp_path, monkeypatch
):
    """A run's checkpoint has the fingerprint of that key, whatever the file's time becomes."""
    store, file = open_store(f"file://{tmp_path}/both", create=True), folder / "a.txt"
    with monkeypatch.context() as earlier:
        earlier.setattr(FileIdentities, "of", lambda _, file: file.etag)
        before = entries(folder, store)
    time = file.stat().st_mtime_ns
    touch(file)
    now = entries(folder, store)
    assert (now[0].key != before[0].key, now[1]) == (True, before[1])
    os.utime(file, ns=(time, time))
    for record in store.list("index/shares/"):
        store.delete(record.path)
    assert entries(folder, store) == now


# --- several loaders, and ends amid the digests -----------------------------------------------------------------------

SMALL = Sizes(jsonl_block=100)


class WatchedStore(Store):
    """Calls `on_read` before each read of a file, and remembers what was read."""

    now = 0.0

    def __init__(self, folder: Path, on_read: Callable[[str], None] = lambda key: None) -> None:
        super().__init__(LocalStore(prefix=folder), folder.as_uri())
        self.on_read, self.read, self.bytes = on_read, list[str](), 0

    def get_range(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        self.on_read(key)
        data = super().get_range(key, start, stop, etag)
        self.read.append(key)
        self.bytes += len(data)
        WatchedStore.now += 60
        return data


def watched(store: WatchedStore, index: Store, format_: str = "Text", include: str = "**") -> Source:
    fields = msgspec.structs.replace(config(Path(store.uri.removeprefix("file://")), format_), include=include)
    source = Source(fields, store, Spool(), SMALL)
    source.keep_identities(index)
    return source


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch):
    """Each read of a file takes a minute."""
    monkeypatch.setattr(WatchedStore, "now", 0.0)
    monkeypatch.setattr(source_module, "FileIdentities", partial(FileIdentities, clock=lambda: WatchedStore.now))


@pytest.fixture
def texts(tmp_path) -> Path:
    """Eight files of a block each."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(8):
        (folder / f"{n}.txt").write_text(f"{n}" * 100)
    return folder


@pytest.fixture
def lines(tmp_path) -> Path:
    """Sixteen files of ten blocks each, so every share has blocks of each file."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for n in range(16):
        (folder / f"{n:02}.jsonl").write_text(f'{{"text": "{n:02} {"x" * 80}"}}\n' * 10)
    return folder


class Turns:
    """Members read by turns, so none is ahead of the others. One that has ended leaves."""

    def __init__(self, members: int) -> None:
        self._order, self._change = deque(range(members)), threading.Condition()

    def take(self, member: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: self._order[0] == member, 60)
            self._order.rotate(-1)
            self._change.notify_all()

    def leave(self, member: int) -> None:
        with self._change:
            self._order.remove(member)
            self._change.notify_all()


def corpora_read_together(folder: Path, index: Store, format_: str, work: Callable[[Source, int], object]) -> float:
    """How many times the folder's bytes two sources read that work at the same time."""
    turns, stores = Turns(2), list[WatchedStore]()

    def run(member: int) -> None:
        try:
            work(watched(stores[member], index, format_), member)
        finally:
            turns.leave(member)

    for member in range(2):
        stores.append(WatchedStore(folder, lambda _, member=member: turns.take(member)))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    return sum(store.bytes for store in stores) / sum(path.stat().st_size for path in folder.iterdir())


def test_two_loaders_digest_and_index_each_file_once_where_each_is_a_block(texts, index):
    def work(source: Source, share: int) -> None:
        index_share(source, BytesTokenizer(), index, LoaderShare("l", "mine", share, 2))

    assert corpora_read_together(texts, index, "Text", work) == 2


def test_two_loaders_with_blocks_in_the_same_files_share_the_work_of_digesting_them(lines, index):
    read = corpora_read_together(lines, index, "Jsonl", lambda source, share: source.blocks(share, 2))
    assert 1 <= read <= 1.25


def test_shares_of_a_source_have_the_blocks_that_all_have_together(lines, index):
    whole = watched(WatchedStore(lines), index, "Jsonl").blocks()
    for share in range(3):
        other = watched(WatchedStore(lines), index, "Jsonl")
        assert other.blocks(share, 3) == whole[share::3]


def test_a_start_after_one_that_failed_in_its_last_file_reads_that_file_only(texts, index):
    def fail(key: str) -> None:
        if key == "7.txt":
            raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        watched(WatchedStore(texts, fail), index).blocks()
    again = WatchedStore(texts)
    assert len(watched(again, index).blocks()) == 8
    assert again.read == ["7.txt"]


def during(folder: Path, key: str, index: Store, other: Callable[[], object], **options: str) -> None:
    """Lists the source's blocks; in the middle of it, before it reads `key`, another process does something."""
    store = WatchedStore(folder, lambda read: other() if read == key else None)
    watched(store, index, **options).blocks()


def test_what_a_loader_has_digested_is_kept_while_it_goes_on(texts, index):
    """So it is when it is killed."""
    second = WatchedStore(texts)
    during(texts, "7.txt", index, lambda: watched(second, index).blocks())
    assert second.read == ["7.txt"]


def test_two_sources_of_one_folder_do_not_overwrite_each_others_digests(texts, index):
    def other(store: WatchedStore) -> Sequence[BlockEntry]:
        return watched(store, index, include="7.txt").blocks()

    during(texts, "0.txt", index, lambda: other(WatchedStore(texts)), include="0.txt")
    again = WatchedStore(texts)
    other(again)
    assert again.read == []


def test_digests_that_an_earlier_release_has_kept_count(texts, index):
    watched(WatchedStore(texts), index).blocks()
    (kept,) = index.list("index/files/")
    name = hashlib.sha256(texts.as_uri().encode()).hexdigest()
    index.put(f"index/files/{name}.json", index.get(kept.path))
    index.delete(kept.path)
    again = WatchedStore(texts)
    watched(again, index).blocks()
    assert again.read == []


def test_a_damaged_object_of_digests_spoils_no_other_one(texts, index):
    watched(WatchedStore(texts), index).blocks()
    (kept,) = index.list("index/files/")
    index.put(kept.path.replace(".json", "-torn.json"), b"{")
    again = WatchedStore(texts)
    watched(again, index).blocks()
    assert again.read == []


def test_a_process_that_digests_many_files_writes_each_digest_a_bounded_number_of_times(tmp_path, index, monkeypatch):
    """A save each minute of all digests so far is half a GB of five million files, hundreds of times."""
    eight = partial(FileIdentities, clock=lambda: WatchedStore.now, of_an_object=8)
    monkeypatch.setattr(source_module, "FileIdentities", eight)
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(64):
        (folder / f"{n:02}.txt").write_text(f"{n:02}")
    written: list[int] = []
    put = Store.put

    def counted(store: Store, key: str, data: bytes) -> None:
        written.append(len(data))
        put(store, key, data)

    monkeypatch.setattr(Store, "put", counted)
    watched(WatchedStore(folder), index).blocks()
    kept = index.list("index/files/")
    assert len(kept) == 64 // 8
    assert sum(written) <= 8 * sum(info.size for info in kept)
    again = WatchedStore(folder)
    assert len(watched(again, index).blocks()) == 64
    assert again.read == []


class Quick(WatchedStore):
    """Each read of a file takes a second."""

    def get_range(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        data = super().get_range(key, start, stop, etag)
        WatchedStore.now -= 59
        return data


def test_digests_are_saved_every_thirty_seconds_and_not_with_each_file_behind_the_first_save(
    tmp_path, index, monkeypatch
):
    folder, saves, put = tmp_path / "many", list[str](), Store.put
    folder.mkdir()
    for n in range(100):
        (folder / f"{n:02}.txt").write_text(f"{n:02}")
    monkeypatch.setattr(Store, "put", lambda store, key, data: saves.append(key) or put(store, key, data))
    assert len(watched(Quick(folder), index).blocks()) == 100
    assert 3 <= len(saves) <= 4
