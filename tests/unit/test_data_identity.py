"""A file is what its content is: copies and touched files are the same data, another content is not."""

from __future__ import annotations

import os
import shutil

import msgspec
import pytest

from coxswain.errors import Refused
from coxswain.index import BlockEntry, fingerprint
from coxswain.planlog import LoaderShare
from coxswain_data.indexer import index_share
from coxswain_data.source import Source, open_source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.store import CorruptObject, Store, open_store
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
        earlier.setattr(Source, "_identity", lambda source, info: info.etag)
        before = entries(folder, store)
    assert all("-" in entry.etag for entry in before)
    assert entries(folder, store) == before
    assert [s.text for s in opened(folder, store).read(before[1]).samples()] == ["the text of b.txt"]
    moved = msgspec.structs.replace(before[1], etag="another")
    with pytest.raises(Refused, match="was indexed"):
        opened(folder, store).read(moved)
