"""Tar, as WebDataset writes it: members that share a name up to the first dot are one sample.

`textField` is an extension. An archive is one block. A small or packed archive is held as a whole;
samples of a larger plain one are read by offset, so unused members (pictures, metadata) cost
nothing.
"""

from __future__ import annotations

import io
import mmap
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import PurePosixPath
from typing import IO

from coxswain.errors import Refused
from coxswain_data.formats.base import Extent, Sample, decoded, some
from coxswain_data.formats.compression import is_compressed, read_whole
from coxswain_data.formats.object_reader import ObjectReader

_BUFFER = 256 << 10  # bytes of one ranged read
_REST = 1 << 20  # bytes behind the end mark that are in memory at a time


class TarBlock:
    """An open archive. `at`: offset of the header of a sample's text, or of its first member."""

    def __init__(
        self, file: IO[bytes] | mmap.mmap, size: int, extension: str, reader: ObjectReader, nbytes: int
    ) -> None:
        self._file, self._size, self._extension, self._reader, self.nbytes = file, size, extension, reader, nbytes

    def samples(self) -> Iterator[Sample]:
        """Raises Refused: ObjectUnreadable (torn), TextFieldUnusable (no such member)."""
        seen: set[str] = set()
        found = False
        for _, group in groupby(self._members(), key=lambda m: _parted(m.name)[0]):
            members = list(group)
            texts = [m for m in members if _parted(m.name)[1] == self._extension]
            seen.update(_parted(m.name)[1] for m in members)
            found = found or bool(texts)
            if len(texts) == 1 and texts[0].isfile():
                at = texts[0].offset
                yield Sample(at, decoded(lambda at=at: self.text(at)))  # type: ignore[misc]
            else:
                yield Sample((texts or members)[0].offset, None)
        if seen and not found:
            raise self._no_text(seen)

    def text(self, at: int) -> str:
        with self._named():
            self._file.seek(at)
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                member = archive.next()
                fault = self._fault(member) if member is not None else ""
                content = b"" if fault else self._content(archive, member)
        if fault:
            raise ValueError(fault)
        return content.decode()

    def _fault(self, member: tarfile.TarInfo) -> str:
        """Why this member of a sample is not its text; empty: it is."""
        if _parted(member.name)[1] != self._extension:
            return f"{member.name} has no member {self._extension!r} beside it"
        return f"{member.name} is a link to {member.linkname}: pack the file itself" if _is_link(member) else ""

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Regular files in order, and links in place of texts: tar packs a second name of one file as one. Callers may move the
        file position in between."""
        at = 0
        while (read := self._member(at)) is not None:
            member, at = read
            if member.isfile() or (_is_link(member) and _parted(member.name)[1] == self._extension):
                yield member

    def _member(self, at: int) -> tuple[tarfile.TarInfo, int] | None:
        """The member whose header is at `at`, and the next offset; None at the end mark."""
        with self._named():
            self._file.seek(at)
            if self._is_end(at):
                return None
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                member = archive.next()
                if member is None:
                    raise tarfile.ReadError(f"byte {at}: no member's header")
                if member.size < 0 or archive.offset <= at:  # it leads backwards, so this would never end
                    raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
                if archive.offset > self._size:
                    raise tarfile.ReadError(f"{member.name} is cut off")
                return member, archive.offset

    def _is_end(self, at: int) -> bool:
        """Whether the end mark, two blocks of zeros, is here.

        `tarfile` accepts a torn archive as ended.
        """
        mark = self._file.read(2 * tarfile.BLOCKSIZE)
        self._file.seek(at)
        if len(mark) < 2 * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("there is no end mark: it is cut off")
        if mark.strip(b"\0"):
            return False
        while rest := self._file.read(_REST):  # records may be large, and all of one is zeros behind the mark
            if rest.strip(b"\0"):
                raise tarfile.ReadError("data follows its end mark: several archives in one file")
        return True

    def _content(self, archive: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes:
        file = archive.extractfile(member) if member is not None else None
        if member is None or file is None:
            raise tarfile.ReadError("no regular file is at this offset")
        if member.size > (most := self._reader.sizes.document):
            raise Refused(
                "ObjectTooLarge",
                f"{self._reader.where}: {member.name} is larger than {most >> 20} MiB; split the document",
            )
        return file.read()

    def _no_text(self, seen: set[str]) -> Refused:
        return Refused(
            "TextFieldUnusable",
            f"textField {self._extension!r}: {self._reader.where} has no member with this extension; name one of "
            f"{some(sorted(seen))}",
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the archive in tarfile's errors, which include bare ValueErrors."""
        try:
            yield
        except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
            raise Refused(
                "ObjectUnreadable",
                f"{self._reader.where} is not readable as tar ({error}); upload it again or exclude it with `include`",
            ) from error


class TarObject:
    def __init__(self, reader: ObjectReader, text_field: str) -> None:
        self._reader, self._extension = reader, text_field.removeprefix(".")

    def extents(self) -> list[Extent]:
        return [Extent(0, 0, self._reader.size)]

    def read(self, extent: Extent) -> TarBlock:
        reader = self._reader
        if is_compressed(reader.path) or reader.size <= reader.sizes.tar_whole:
            data = read_whole(reader, reader.sizes.unpacked)
            held = data if isinstance(data, mmap.mmap) else io.BytesIO(data)
            return TarBlock(held, len(data), self._extension, reader, len(data))
        return TarBlock(reader.file(_BUFFER), reader.size, self._extension, reader, _BUFFER)


def _is_link(member: tarfile.TarInfo) -> bool:
    return member.islnk() or member.issym()


def _parted(name: str) -> tuple[str, str]:
    """(group, extension): cut at the first dot of the base name, as WebDataset does."""
    path = PurePosixPath(name)
    stem, _, extension = path.name.partition(".")
    return str(path.parent / stem), extension
