"""Parquet: a row group is a block.

Only the text column is read, in small ranges, never the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from coxswain.errors import Refused
from coxswain_data.formats.base import Extent, Sample, decoded, some
from coxswain_data.formats.compression import at_most
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_data.formats.ranges import RangeFile
from coxswain_link.spool import Data

_BUFFER = 1 << 20  # bytes of one read; with pre_buffer on, pyarrow would hold hundreds of MiB
WRITE_BYTES = 8 << 20  # bytes of one write to the spool
_ROWS = 16  # the most that are unpacked at a time: a dictionary or common prefixes make many bytes out of few
_INDICES = 1 << 16  # rows of a dictionary column that are read at a time: each time pyarrow copies all values
_UNPACKED = 1024  # the most times for one write: of short rows, each time costs more memory than its bytes


class ParquetBlock:
    """The text column of one row group.

    A null raises ValueError, as text that is not UTF-8 does.
    """

    def __init__(self, data: Data, most: int, too_long: Callable[[int], Refused]) -> None:
        """`data`: the column as an Arrow stream. `too_long` takes the row of a text of more than `most` bytes."""
        self._column, self.nbytes = pa.ipc.open_stream(pa.py_buffer(data)).read_all().column(0), len(data)
        self._most, self._too_long = most, too_long

    def samples(self) -> Iterator[Sample]:
        for row in range(len(self._column)):
            yield Sample(row, decoded(lambda row=row: self.text(row)))  # type: ignore[misc]

    def text(self, at: int) -> str:
        value = self._column[at].as_buffer()
        if value is None:
            raise ValueError("null")
        if value.size > self._most:
            raise self._too_long(at)
        return str(value, "utf-8")


class ParquetObject:
    def __init__(self, reader: ObjectReader, text_field: str) -> None:
        self._reader, self._where, self._field = reader, reader.where, text_field
        with self._named():
            source = pa.PythonFile(RangeFile(reader.range, reader.size), mode="r")
            self._file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)
            kind = self._checked_type(self._file.schema_arrow)
        self._is_dictionary = pa.types.is_dictionary(kind)
        self._plain = pa.schema([(self._field, _value_type(kind))])

    def extents(self) -> list[Extent]:
        return [Extent(i, 0, self._reader.size) for i in range(self._file.metadata.num_row_groups)]

    def read(self, extent: Extent) -> ParquetBlock:
        most, too_large = self._reader.sizes.unpacked, self._too_large(extent.ordinal)
        if self._is_beyond(most, extent.ordinal):
            raise too_large
        data = self._reader.spool.hold(at_most(most, self._stream(extent.ordinal), too_large))
        return ParquetBlock(data, self._reader.sizes.document, lambda row: self._too_long(row, extent.ordinal))

    def _stream(self, group: int) -> Iterator[pa.Buffer]:
        """The column as an Arrow stream, in batches of some `WRITE_BYTES` bytes."""
        yield self._plain.serialize()
        for batches in _gathered(self._batches(group)):
            yield pa.concat_batches(batches).serialize()

    def _batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Of few rows each: a dictionary's values are repeated for these alone."""
        with self._named():
            for batch in self._file.iter_batches(self._rows(group), [group], [self._field], use_threads=False):
                # A name with a dot selects a field within a struct, too.
                column = batch.select([self._field])
                for start in range(0, len(column), _ROWS):
                    yield column.slice(start, _ROWS).cast(self._plain)

    def _rows(self, group: int) -> int:
        """Of a batch as pyarrow reads it. A dictionary takes as many bytes as in the file: pyarrow refuses prefixes there."""
        if self._is_dictionary:
            return _INDICES
        metadata = self._file.metadata.row_group(group)
        rows: int = min(_ROWS, WRITE_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1))
        return max(1, rows)

    def _too_large(self, group: int) -> Refused:
        return Refused(
            "ObjectTooLarge",
            f"{self._where}: {self._field!r} of row group {group} has more than {self._reader.sizes.unpacked >> 20} MiB "
            "unpacked; write the file again with smaller row groups",
        )

    def _too_long(self, row: int, group: int) -> Refused:
        return Refused(
            "ObjectTooLarge",
            f"{self._where}: {self._field!r} of row {row} of row group {group} is longer than "
            f"{self._reader.sizes.document >> 20} MiB; split the document",
        )

    def _is_beyond(self, most: int, group: int) -> bool:
        """Whether the text column has more bytes, as the file says: without compression, but each value of a dictionary once.

        Columns are asked of large groups only: where a footer contradicts itself, pyarrow ends the process.
        """
        metadata = self._file.metadata.row_group(group)
        if metadata.total_byte_size <= most:
            return False
        with self._named():
            columns = (metadata.column(i) for i in range(metadata.num_columns))
            size: int = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == self._field)
        return size > most

    def _checked_type(self, schema: pa.Schema) -> pa.DataType:
        """Of the text column; refuses what holds no text."""
        if self._field not in schema.names:
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r}: {self._where} has no such column; name one of {some(schema.names)}",
            )
        if (count := schema.names.count(self._field)) > 1:
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r}: {self._where} has {count} columns of that name; write it again with one",
            )
        kind = schema.field(self._field).type
        if not any(is_text(_value_type(kind)) for is_text in _TEXT_TYPES):
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r} of {self._where} is {kind}; allowed are string and "
                "binary columns: name one of those",
            )
        return kind

    @contextmanager
    def _named(self) -> Iterator[None]:
        """pyarrow does not say which file is corrupt. Names of columns are decoded as they are asked for."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise Refused(
                "ObjectUnreadable",
                f"{self._where} is not readable as Parquet ({str(error).splitlines()[0][:200]}); "
                "upload it again or exclude it with `include`",
            ) from error


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Successive batches of `WRITE_BYTES` bytes together, or of `_UNPACKED` batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= WRITE_BYTES or len(held) == _UNPACKED:
            yield held
            held, size = [], 0
    if held:
        yield held


_TEXT_TYPES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
)  # fmt: skip
