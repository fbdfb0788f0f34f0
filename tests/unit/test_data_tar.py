"""Tar as WebDataset writes it: which members are samples, and archives that are torn."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coxswain.errors import Refused
from coxswain.index import BlockEntry
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.formats.tar import TarBlock
from coxswain_data.source import Source, open_source
from tests.unit.test_data_formats import Memory, reader
from tests.unit.test_data_formats import source as source_of

MEMBERS = [
    ("a/1.txt", b"one"),
    ("a/1.json", b"{}"),
    ("a/2.jpg", b"x" * 900),
    ("a/2.txt", "zwei ü".encode()),
    ("b.3.txt", b"-"),
]
PACKERS = {
    "a.tar": bytes, "a.tar.gz": gzip.compress, "a.tgz": gzip.compress, "a.tar.zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip

held = pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["by ranges", "in memory"])


def archive(*members: tuple[str, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_) as file:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def source(folder: Path, field: str = "txt", in_memory: int = 16 << 20) -> Source:
    config = msgspec.structs.replace(source_of(folder, "Tar").config, text_field=field)
    return open_source(config, sizes=Sizes(tar_whole=in_memory))


def written(folder: Path, data: bytes, name: str = "a.tar", field: str = "txt", in_memory: int = 16 << 20) -> Source:
    (folder / name).write_bytes(data)
    return source(folder, field, in_memory)


def block(mine: Source) -> BlockEntry:
    (only,) = mine.blocks()
    return only


def texts(mine: Source) -> list[object]:
    return [s.text for s in mine.read(block(mine)).samples()]


@held
@pytest.mark.parametrize("name", PACKERS)
def test_members_of_one_name_are_a_sample_and_its_text_has_the_extension(tmp_path, name, in_memory):
    assert texts(written(tmp_path, PACKERS[name](archive(*MEMBERS)), name, in_memory=in_memory)) == [
        "one",
        "zwei ü",
        None,
    ]


def with_link(kind: bytes, name: str = "b.txt") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for entry in (tarfile.TarInfo("a.txt"), tarfile.TarInfo(name)):
            entry.size = 3 if entry.name == "a.txt" else 0
            if entry.name == name:
                entry.type, entry.linkname = kind, "a.txt"
            file.addfile(entry, io.BytesIO(b"one"))
    return out.getvalue()


@held
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_in_place_of_a_text_is_a_sample_that_does_not_decode_and_is_named(tmp_path, kind, in_memory):
    """tar packs the second name of a file as a link: before, such a document was left out without a word."""
    mine = written(tmp_path, with_link(kind), in_memory=in_memory)
    assert texts(mine) == ["one", None]
    link = mine.read(block(mine))
    (at,) = (sample.at for sample in link.samples() if sample.text is None)
    with pytest.raises(ValueError, match=r"b\.txt is a link to a\.txt: pack the file itself"):
        link.text(at)


@pytest.mark.parametrize("name", ["b", "b.json"])
def test_a_link_that_is_no_text_is_left_out(tmp_path, name):
    assert texts(written(tmp_path, with_link(tarfile.SYMTYPE, name))) == ["one"]


def test_a_sample_without_a_text_is_named_so_and_not_by_what_another_member_holds(tmp_path):
    """Before, a picture beside it was said to be no UTF-8."""
    mine = written(tmp_path, archive(("a.txt", b"one"), ("b.jpg", b"\xff\xd8")))
    found = mine.read(block(mine))
    (at,) = (sample.at for sample in found.samples() if sample.text is None)
    with pytest.raises(ValueError, match=r"b\.jpg has no member 'txt' beside it"):
        found.text(at)


@held
@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_sample_is_found_again_at_its_place_in_any_order(tmp_path, in_memory, format_):
    long = "/".join(["folder" * 10] * 2) + ("" if format_ == tarfile.USTAR_FORMAT else "long" * 20)
    members = [(f"{long}/{i}.txt", f"text {i}".encode() * i) for i in range(1, 40)]
    mine = written(tmp_path, archive(*members, format_=format_), in_memory=in_memory)
    places = [s.at for s in mine.read(block(mine)).samples()]
    held_open = mine.read(block(mine))
    assert [held_open.text(at) for at in reversed(places)] == [f"text {i}" * i for i in reversed(range(1, 40))]


def test_folders_pipes_and_empty_archives_are_no_samples(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, kind in (("a.txt", tarfile.DIRTYPE), ("c.txt", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            file.addfile(entry)
    assert texts(written(tmp_path, out.getvalue())) == []
    assert texts(written(tmp_path, archive())) == []


def test_text_that_is_not_utf8_missing_or_double_is_a_sample_without_text(tmp_path):
    members = [("1.txt", b"\xff"), ("2.json", b""), ("3.txt", b"a"), ("3.txt", b"b"), ("4.txt", b"good")]
    assert texts(written(tmp_path, archive(*members))) == [None, None, None, "good"]


@held
def test_a_text_beyond_the_limit_of_a_document_is_refused_by_the_name_of_its_member(tmp_path, in_memory):
    (tmp_path / "a.tar").write_bytes(archive(("1.txt", b"four"), ("2.txt", b"fives")))
    config = source(tmp_path).config
    fitting, beyond = (open_source(config, sizes=Sizes(tar_whole=in_memory, document=most)) for most in (5, 4))
    assert texts(fitting) == ["four", "fives"]
    with pytest.raises(Refused, match=r"a\.tar: 2\.txt is larger than .*split the document"):
        texts(beyond)


def test_an_extension_may_have_dots_and_be_given_with_one(tmp_path):
    data = archive(("1.en.txt", b"one"), ("1.de.txt", b"eins"))
    assert texts(written(tmp_path, data, field=".de.txt")) == ["eins"]


def test_an_extension_that_no_member_has_is_refused_with_those_that_are_there(tmp_path):
    mine = written(tmp_path, archive(*MEMBERS), field="text")
    with pytest.raises(Refused, match=r"textField 'text': .*a\.tar has no member.*3\.txt, jpg, json, txt") as caught:
        texts(mine)
    assert caught.value.reason == "TextFieldUnusable"


@held
@pytest.mark.parametrize("left", [0, 1, 100, 512, 600, 1024, 1536, 2048, 3000, 5120, 7680])
def test_an_archive_that_is_cut_off_anywhere_is_refused_by_name(tmp_path, left, in_memory):
    data = archive(*((f"{i}.txt", b"x" * 700) for i in range(5)))  # 5 x 1,536 bytes, then the end mark
    with pytest.raises(Refused, match=r"a\.tar is not readable as tar .*upload it again") as caught:
        texts(written(tmp_path, data[:left], in_memory=in_memory))
    assert caught.value.reason == "ObjectUnreadable"


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.zst"])
def test_a_packed_archive_that_is_cut_off_is_refused_by_name(tmp_path, name):
    with pytest.raises(Refused, match=rf"{name} cannot be unpacked") as caught:
        texts(written(tmp_path, PACKERS[name](archive(*MEMBERS))[:-9], name))
    assert caught.value.reason == "ObjectUnreadable"


def test_a_damaged_header_in_the_middle_does_not_lose_the_rest_unseen(tmp_path):
    data = bytearray(archive(*((f"{i}.txt", b"x") for i in range(5))))
    data[2 * 1024 + 3] ^= 1
    with pytest.raises(Refused, match=r"byte 2048: no member's header"):
        texts(written(tmp_path, bytes(data)))


@held
@pytest.mark.parametrize("record", [20 * 512, 512 * 512], ids=["usual records", "records of a tape"])
def test_several_archives_in_one_file_are_refused_rather_than_read_in_part(tmp_path, record, in_memory):
    whole = archive(*MEMBERS)
    padded = whole + bytes(-len(whole) % record)
    assert texts(written(tmp_path, padded, in_memory=in_memory)) == ["one", "zwei ü", None]
    with pytest.raises(Refused, match="several archives in one file"):
        texts(written(tmp_path, padded * 2, in_memory=in_memory))


def test_something_else_that_is_called_tar_is_refused_by_name(tmp_path):
    with pytest.raises(Refused, match=r"a\.tar is not readable as tar"):
        texts(written(tmp_path, b"no archive at all " * 99))


PLAIN = archive(*((f"{i}.txt", f"document {i}".encode()) for i in range(4)))


@given(place=st.integers(0, 4 * 1024 - 1), value=st.integers(0, 255))
def test_whatever_byte_of_an_archive_is_damaged_the_end_is_samples_or_a_refusal_by_name(place, value):
    data = bytearray(PLAIN)
    data[place] = value
    opened = TarBlock(io.BytesIO(data), len(data), "txt", reader(Memory(bytes(data)), Sizes(), "x.tar"), 0)
    try:
        found = list(opened.samples())
    except Refused as error:
        assert "x.tar" in error.message
    else:
        assert len(found) == 4
