"""Reading Parquet: row groups, kinds of columns, damage, and what comes out of a few bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coxswain.errors import Refused
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.formats.parquet import WRITE_BYTES
from coxswain_link.spool import Data, Spool
from tests.unit.test_data_formats import samples, source, texts


def parquet(path: Path, column: pa.Array, rows: int = 2, **columns: pa.Array) -> None:
    pq.write_table(pa.table({"text": column, **columns}), path, row_group_size=rows)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()], ids=str)
def test_a_row_group_is_a_block_whatever_the_kind_of_string(tmp_path, kind):
    parquet(tmp_path / "a.parquet", pa.array(["one", "zwei ü", "three"], kind), other=pa.array([1, 2, 3]))
    mine = source(tmp_path, "Parquet")
    assert [b.ordinal for b in mine.blocks()] == [0, 1]
    assert texts(mine) == ["one", "zwei ü", "three"]


def test_a_dictionary_column_reads_like_a_plain_one(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array(["one", "two", "one"]).dictionary_encode())
    assert texts(source(tmp_path, "Parquet")) == ["one", "two", "one"]


def test_the_values_of_a_dictionary_column_are_not_copied_for_each_few_rows(tmp_path):
    """A thousand values of 1 KB: a copy for each 16 of 4,000 rows would be 250 MB."""
    column = pa.array([f"{i % 1000:04d}" * 256 for i in range(4000)])
    parquet(tmp_path / "a.parquet", column.dictionary_encode(), rows=4000)
    mine, before = source(tmp_path, "Parquet"), pa.default_memory_pool().total_bytes_allocated()
    block = mine.read(mine.blocks()[0])
    assert [block.text(at)[:4] for at in (0, 999, 3999)] == ["0000", "0999", "0999"]
    assert pa.default_memory_pool().total_bytes_allocated() - before < 40_000_000


def test_very_many_rows_of_a_small_dictionary_are_not_in_memory_at_once(tmp_path):
    """A file of some bytes may have a billion of them, each with an index of four bytes."""
    rows, pool = 300_000, pa.proxy_memory_pool(pa.default_memory_pool())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x"]))
    parquet(tmp_path / "a.parquet", column, rows=rows)
    mine, before = source(tmp_path, "Parquet"), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        block = mine.read(mine.blocks()[0])
    finally:
        pa.set_memory_pool(before)
    assert block.text(rows - 1) == "x"
    assert pool.max_memory() < 2 << 20


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_a_dictionary_column_with_nulls_has_the_rows_of_a_plain_one(tmp_path, kind):
    expected = [None if i % 7 == 0 else f"text {i % 90}" for i in range(1000)]
    parquet(tmp_path / "a.parquet", pa.array(expected, pa.string()).cast(kind).dictionary_encode(), rows=600)
    assert texts(source(tmp_path, "Parquet")) == expected


def test_nulls_and_bad_utf8_are_samples_without_text(tmp_path):
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa"))
    parquet(tmp_path / "a.parquet", broken)
    parquet(tmp_path / "b.parquet", pa.array([None, "b"], pa.string()))
    assert texts(source(tmp_path, "Parquet")) == [None, "a", None, "b"]


def test_a_missing_text_column_is_refused_with_the_columns_that_are_there(tmp_path):
    pq.write_table(pa.table({"content": ["x"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(Refused, match="content, id"):
        source(tmp_path, "Parquet").blocks()


def test_of_very_many_columns_only_some_are_named(tmp_path):
    pq.write_table(pa.table({f"c{n}": [n] for n in range(5000)}), tmp_path / "a.parquet")
    with pytest.raises(Refused, match=r"name one of c0, c1, .*, c9 and 4990 more") as caught:
        source(tmp_path, "Parquet").blocks()
    assert len(caught.value.message) < 1000


def test_two_columns_of_the_text_fields_name_are_refused_by_the_file(tmp_path):
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(Refused, match=r"a\.parquet has 2 columns of that name; write it again with one"):
        source(tmp_path, "Parquet").blocks()


def test_a_text_column_of_numbers_is_refused_with_its_type(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array([1, 2]))
    with pytest.raises(Refused, match="int64"):
        source(tmp_path, "Parquet").blocks()


@pytest.mark.parametrize("harm", ["truncated", "empty", "garbage"])
def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path, harm):
    parquet(tmp_path / "a.parquet", pa.array(["x" * 99] * 50))
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes({"truncated": data[:-30], "empty": b"", "garbage": b"PAR1" * 50}[harm])
    with pytest.raises(Refused, match=r"a\.parquet") as caught:
        source(tmp_path, "Parquet").blocks()
    assert caught.value.reason == "ObjectUnreadable"


def test_a_name_of_a_column_that_is_not_utf8_is_refused_by_the_file(tmp_path):
    pq.write_table(pa.table({"thewords": ["one"]}), tmp_path / "a.parquet", store_schema=False)
    before, name, behind = (tmp_path / "a.parquet").read_bytes().partition(b"thewords")
    (tmp_path / "a.parquet").write_bytes(before + name[:-1] + b"\xff" + behind)
    with pytest.raises(Refused, match=r"a\.parquet is not readable as Parquet \(.*utf-8.*upload it again") as caught:
        source(tmp_path, "Parquet", text_field="thewords").blocks()
    assert caught.value.reason == "ObjectUnreadable"


def test_a_footer_whose_parts_contradict_each_other_is_refused_and_does_not_end_the_process(tmp_path):
    """The column is said to have no nulls; its statistics count them. pyarrow cannot say so of a column's metadata."""
    parquet(tmp_path / "a.parquet", pa.array(["one", None]))
    data = (tmp_path / "a.parquet").read_bytes()
    optional, required = b"\x25\x02\x18\x04text", b"\x25\x00\x18\x04text"  # repetition, then the name
    assert data.count(optional) == 1
    (tmp_path / "a.parquet").write_bytes(data.replace(optional, required))
    with pytest.raises(Refused, match=r"a\.parquet is not readable as Parquet \(.*histogram size mismatch"):
        samples(source(tmp_path, "Parquet"))


def test_damaged_pages_are_refused_by_name(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array([f"{i}" * 50 for i in range(500)]), rows=500)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[40:400] = b"\xff" * 360
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(Refused, match=r"a\.parquet"):
        samples(source(tmp_path, "Parquet"))


def test_a_page_that_differs_from_its_checksum_is_refused_by_name(tmp_path):
    """Text that is stored as it is decodes whatever its bytes are."""
    column = pa.array([f"{i:050d}" for i in range(500)])
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", **plain)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[data.index(b"0" * 48 + b"77") + 10] ^= 1
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(Refused, match=r"a\.parquet is not readable as Parquet \(.*CRC"):
        samples(source(tmp_path, "Parquet"))


def test_a_column_whose_name_has_a_dot_is_read_beside_a_struct_of_that_path(tmp_path):
    table = pa.table({"meta": [{"text": "no"}, {"text": "no"}], "meta.text": ["one", "two"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert texts(source(tmp_path, "Parquet", text_field="meta.text")) == ["one", "two"]


def test_a_row_group_beyond_the_limit_is_refused_with_its_size_before_it_is_read(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array(["small", "x" * (3 << 20)]), rows=1, other=pa.array(["y" * (3 << 20)] * 2))
    mine = source(tmp_path, "Parquet", sizes=Sizes(unpacked=2 << 20))
    small, huge = mine.blocks()
    assert [s.text for s in mine.read(small).samples()] == ["small"]
    with pytest.raises(
        Refused, match=r"a\.parquet: 'text' of row group 1 has more than 2 MiB unpacked; .*smaller row groups"
    ):
        mine.read(huge)


def repeated(path: Path, arrow: bool = False, **how: Any) -> None:
    """100 MB of text in a row group whose file counts less than 2 MiB."""
    text = pa.array(["x" * 996 + f"{i % 500:04d}" for i in range(100_000)])
    pq.write_table(pa.table({"text": text.dictionary_encode() if arrow else text}), path, row_group_size=100_000, **how)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size < 2 << 20


SMALL_IN_THE_FILE = [{}, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, {"arrow": True}]


@pytest.mark.parametrize("how", SMALL_IN_THE_FILE, ids=["a dictionary", "prefixes", "a dictionary of Arrow's"])
def test_the_limit_of_a_row_group_counts_the_text_that_comes_out_of_it(tmp_path, how):
    repeated(tmp_path / "a.parquet", **how)
    mine = source(tmp_path, "Parquet", sizes=Sizes(unpacked=4 << 20))
    with pytest.raises(
        Refused, match=r"'text' of row group 0 has more than 4 MiB unpacked; .*smaller row groups"
    ) as caught:
        mine.read(mine.blocks()[0])
    assert caught.value.reason == "ObjectTooLarge"


@pytest.mark.parametrize("how", SMALL_IN_THE_FILE, ids=["a dictionary", "prefixes", "a dictionary of Arrow's"])
def test_a_row_group_is_unpacked_in_pieces_whatever_its_size_in_the_file(tmp_path, monkeypatch, how):
    repeated(tmp_path / "a.parquet", **how)
    mine, written, hold = source(tmp_path, "Parquet"), [], Spool.hold

    def measured(spool: Spool, parts: Iterable[Any]) -> Data:
        return hold(spool, (written.append(len(part)) or part for part in parts))

    monkeypatch.setattr(Spool, "hold", measured)
    block = mine.read(mine.blocks()[0])
    assert sum(written) == block.nbytes > 100_000_000
    assert max(written) < 2 * WRITE_BYTES
    assert [block.text(at)[-5:] for at in (0, 499, 99_999)] == ["x0000", "x0499", "x0499"]


def test_a_row_group_of_short_rows_is_written_in_few_pieces(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array([str(i) for i in range(100_000)]), rows=100_000)
    mine = source(tmp_path, "Parquet")
    block = mine.read(mine.blocks()[0])
    assert block.text(77_777) == "77777"
    assert block.nbytes < 2_000_000  # 889 kB of which are the text and its offsets


def test_rows_that_are_larger_than_a_write_are_read_one_at_a_time(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array(["x" * (WRITE_BYTES + 1), "y"]), rows=1)
    assert [len(text or "") for text in texts(source(tmp_path, "Parquet"))] == [WRITE_BYTES + 1, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()], ids=str)
def test_a_text_beyond_the_limit_of_a_document_is_refused_by_its_row(tmp_path, kind):
    parquet(tmp_path / "a.parquet", pa.array(["one", "two", "x" * (1 << 20)], kind))
    assert len(texts(source(tmp_path, "Parquet", sizes=Sizes(document=1 << 20)))) == 3
    with pytest.raises(
        Refused, match=r"a\.parquet: 'text' of row 0 of row group 1 is longer than 0 MiB; split"
    ) as caught:
        texts(source(tmp_path, "Parquet", sizes=Sizes(document=(1 << 20) - 1)))
    assert caught.value.reason == "ObjectTooLarge"
