"""Text: an object is one sample. UTF-8; .gz and .zst too."""

from __future__ import annotations

from collections.abc import Iterator

from coxswain_data.formats.base import Extent, Sample, decoded
from coxswain_data.formats.compression import read_whole
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_link.spool import Data


class TextBlock:
    def __init__(self, data: Data) -> None:
        self._data, self.nbytes = data, len(data)

    def samples(self) -> Iterator[Sample]:
        yield Sample(0, decoded(lambda: self.text(0)))

    def text(self, at: int) -> str:
        return self._data[:].decode()


class TextObject:
    def __init__(self, reader: ObjectReader, text_field: str) -> None:
        self._reader = reader

    def extents(self) -> list[Extent]:
        return [Extent(0, 0, self._reader.size)]

    def read(self, extent: Extent) -> TextBlock:
        return TextBlock(read_whole(self._reader, self._reader.sizes.document))
