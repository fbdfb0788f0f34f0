"""Parquet: a row group is a block.

Only the text column is read, in small ranges, never the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from coxswain.errors import Refused
from coxswain_data.formats.base import MAX_WHOLE, Extent, Sample, decoded
from coxswain_data.formats.ranges import RangeFile
from coxswain_link.store import ObjectInfo, Store

_BUFFER = 1 << 20  # bytes of one read; with pre_buffer on, pyarrow would hold hundreds of MiB


class ParquetBlock:
    """The text column of one row group.

    A null raises ValueError, as text that is not UTF-8 does.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column, self.nbytes = column, column.nbytes

    def samples(self) -> Iterator[Sample]:
        for row in range(len(self._column)):
            yield Sample(row, decoded(lambda row=row: self.text(row)))  # type: ignore[misc]

    def text(self, at: int) -> str:
        value = self._column[at].as_py()
        if value is None:
            raise ValueError("null")
        return value.decode() if isinstance(value, bytes) else str(value)


class ParquetObject:
    def __init__(self, store: Store, info: ObjectInfo, text_field: str) -> None:
        self._where, self._size, self._field = f"{store.uri.rstrip('/')}/{info.path}", info.size, text_field
        with self._named():
            source = pa.PythonFile(RangeFile(store, info), mode="r")
            self._file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)
        self._check_column()

    def extents(self) -> list[Extent]:
        return [Extent(i, 0, self._size) for i in range(self._file.metadata.num_row_groups)]

    def read(self, extent: Extent) -> ParquetBlock:
        self._check_size(extent.ordinal)
        with self._named():
            table = self._file.read_row_group(extent.ordinal, columns=[self._field], use_threads=False)
        return ParquetBlock(table.column(self._field))

    def _check_size(self, group: int) -> None:
        """A block is held in memory as a whole."""
        metadata = self._file.metadata.row_group(group)
        columns = (metadata.column(i) for i in range(metadata.num_columns))
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == self._field)
        if size > MAX_WHOLE:
            raise Refused(
                "ObjectTooLarge",
                f"{self._where}: {self._field!r} of row group {group} has {size >> 20} MiB, allowed are {MAX_WHOLE >> 20}; "
                "write the file again with smaller row groups",
            )

    def _check_column(self) -> None:
        schema = self._file.schema_arrow
        if self._field not in schema.names:
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r}: {self._where} has no such column; name one of {', '.join(schema.names)}",
            )
        if (count := schema.names.count(self._field)) > 1:
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r}: {self._where} has {count} columns of that name; write it again with one",
            )
        kind = schema.field(self._field).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(value) for is_text in _TEXT_TYPES):
            raise Refused(
                "TextFieldUnusable",
                f"textField {self._field!r} of {self._where} is {kind}; allowed are string and binary columns: name one of those",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """pyarrow does not say which file is corrupt."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise Refused(
                "ObjectUnreadable",
                f"{self._where} is not readable as Parquet ({str(error).splitlines()[0][:200]}); "
                "upload it again or exclude it with `include`",
            ) from error


_TEXT_TYPES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
)  # fmt: skip
