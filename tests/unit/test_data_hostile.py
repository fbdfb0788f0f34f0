"""Sources that change while they are listed and read, or that are made to mislead."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tarfile
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain_data.formats import FORMATS
from coxswain_data.formats.base import Extent
from coxswain_data.formats.object_reader import ObjectReader, Sizes
from coxswain_data.index_record import ShareRecords, StoredIndexes
from coxswain_data.source import Source, open_source
from coxswain_link.object_info import Listing, ObjectInfo
from coxswain_link.spool import Spool
from coxswain_link.store import CorruptObject, open_store
from tests.unit.test_data_formats import Memory, reader
from tests.unit.test_data_formats import source as source_of
from tests.unit.test_data_tar import archive, texts, written

pytestmark = pytest.mark.timeout(60)


def listed_with_more(format_: str, more: int = 100) -> tuple[ObjectReader, Extent]:
    """Of a store whose object has lost its end since it was listed, but not its ETag."""
    found = reader(Memory(b'{"text": "one"}\n'), Sizes(), f"a.{format_.lower()}")
    return replace_size(found, found.size + more), Extent(0, 0, found.size + more)


def replace_size(found: ObjectReader, size: int) -> ObjectReader:
    info = ObjectInfo(found.path, size, "")
    return ObjectReader(found.store, info, found.spool, found.changed, found.sizes)


@pytest.mark.parametrize("format_", ["Jsonl", "Text", "Tar", "Parquet"])
def test_an_object_that_lost_its_end_while_it_is_read_is_refused_and_not_taken_for_shorter(format_):
    """A line that never comes would be waited for without end; a text would be cut off."""
    found, extent = listed_with_more(format_)
    with pytest.raises(Refused, match="was listed with 116 bytes and ends at byte 16"):
        list(FORMATS[format_](found, "text").read(extent).samples())


def test_folders_that_are_deleted_while_a_source_is_listed_are_left_out_as_files_are(tmp_path: Path):
    """Before, the whole source was said not to exist."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(name)
        (tmp_path / name / "link").symlink_to("nowhere")

    def wanted(key: str) -> bool:
        """Asked of the first link: all other folders are deleted then."""
        for folder in tmp_path.iterdir():
            if folder.name != key.partition("/")[0]:
                shutil.rmtree(folder)
        return False

    found = list(open_store(tmp_path.as_uri()).corpus(wanted))
    assert len(found) == 1
    assert found[0].path.endswith("/1.txt")


def test_a_folder_that_include_leaves_out_need_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "a.txt").write_text("one")
    scan = os.scandir

    def allowed(path: Path) -> object:
        if path.name == "private":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", allowed)
    assert [entry.path for entry in source_of(tmp_path, "Text", "*.txt").blocks()] == ["a.txt"]
    with pytest.raises(Refused, match="private cannot be listed"):
        source_of(tmp_path, "Text", "**/*.txt").blocks()


class Bucket:
    """Of which a console shows `data` as a folder, too."""

    uri, last_error = "s3://bucket/data", ""
    real = ObjectInfo("data", 5, "etag")

    def corpus(self, wanted: object, may_hold: object) -> Listing:
        return [ObjectInfo("data", 0, "marker"), self.real]

    def head(self, path: str) -> ObjectInfo:
        return self.real


def test_a_folder_marker_of_the_name_of_an_object_is_no_object(tmp_path: Path):
    config = replace(source_of(tmp_path, "Text").config, uri=Bucket.uri)
    (only,) = Source(config, Bucket(), Spool(), Sizes()).blocks()  # type: ignore[arg-type]
    assert (only.object_size, only.etag) == (5, "etag")


def test_an_object_that_is_listed_twice_is_read_once(tmp_path: Path):
    """Some servers repeat keys at the edge of two pages: each pass would have had its documents twice."""

    class Repeating(Bucket):
        def corpus(self, wanted: object, may_hold: object) -> Listing:
            return [self.real, self.real, ObjectInfo("more", 5, "etag")]

    config = replace(source_of(tmp_path, "Text").config, uri=Bucket.uri)
    blocks = Source(config, Repeating(), Spool(), Sizes()).blocks()  # type: ignore[arg-type]
    assert [block.path for block in blocks] == ["data", "more"]


def test_objects_that_are_listed_in_no_order_are_read_by_path_and_once(tmp_path: Path):
    class Unordered(Bucket):
        def corpus(self, wanted: object, may_hold: object) -> Listing:
            return [ObjectInfo(path, 5, "etag") for path in ("more", "data", "more", "a/b")]

    config = replace(source_of(tmp_path, "Text").config, uri=Bucket.uri)
    blocks = Source(config, Unordered(), Spool(), Sizes()).blocks()  # type: ignore[arg-type]
    assert [block.path for block in blocks] == ["a/b", "data", "more"]


class DamagedStore:
    """Whose objects have lost their content."""

    def get(self, key: str) -> bytes:
        raise CorruptObject(key)


def test_a_record_of_indexes_that_is_damaged_counts_for_nothing():
    """It can be made again: its job is not refused for it."""
    records = ShareRecords(StoredIndexes(DamagedStore()), "mine")  # type: ignore[arg-type]
    assert records.read("index/shares/a.json") == []


def header(size: int) -> bytes:
    """Of a member whose size is in base 256: it may be below 0."""
    data = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT))
    data[124:136] = b"\xff" + (256**11 + size).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


@pytest.mark.parametrize("size", [-1, -512, -1024, -(10**6)])
@pytest.mark.parametrize("before", [0, 3])
def test_a_member_that_leads_backwards_is_refused_and_not_read_without_end(tmp_path: Path, size: int, before: int):
    whole = archive(*((f"{n}.txt", b"x") for n in range(before)))
    data = whole[: before * 1024] + header(size) + bytes(10 * 1024)
    with pytest.raises(Refused, match=r"a\.tar is not readable as tar"):
        texts(written(tmp_path, data))


def test_headers_that_are_nested_without_end_are_refused(tmp_path: Path):
    entry = tarfile.TarInfo("pax")
    entry.type, entry.size = tarfile.XHDTYPE, 10
    one = entry.tobuf(tarfile.USTAR_FORMAT) + b"10 a=bcde\n".ljust(512, b"\0")
    with pytest.raises(Refused, match=r"a\.tar is not readable as tar"):
        texts(written(tmp_path, one * 3000 + bytes(1024)))


def test_a_refusal_that_names_bytes_that_are_no_text_can_be_sent(tmp_path: Path):
    """It was lost with its loader, which had no cause to name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as file:
        file.addfile(tarfile.TarInfo("a.t\xff"))
    with pytest.raises(Refused, match=r"name one of t\\udcff$") as caught:
        texts(written(tmp_path, out.getvalue()))
    assert msgspec.json.decode(msgspec.json.encode(caught.value.message)) == str(caught.value)


def test_an_object_that_is_deleted_after_the_listing_is_refused_by_its_name(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    source = open_source(source_of(tmp_path, "Text").config)
    (block,) = source.blocks()
    (tmp_path / "a.txt").unlink()
    with pytest.raises(Refused, match=r"a\.txt was indexed and is gone") as caught:
        source.read(block)
    assert caught.value.reason == "SourceChanged"
