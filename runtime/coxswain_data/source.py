"""A source: its objects, its blocks in index order, and their content while it is as indexed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, count, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path

from msgspec.structs import replace

from coxswain.config import WITHOUT_TEXT_FIELD, SourceConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry
from coxswain.lru_cache import LRUCache
from coxswain.packed import Packed
from coxswain.uris import file_path, is_file
from coxswain_data.formats import format_named
from coxswain_data.formats.base import Block, Extent, OpenObject
from coxswain_data.formats.object_reader import ObjectReader, Sizes
from coxswain_data.formats.tokenbin import INDEX, TOKENS, companion, tokens_of
from coxswain_data.identity import FileIdentities
from coxswain_link.spool import Spool
from coxswain_link.store import BucketNotFound, NotFound, ObjectInfo, Store, open_store

OPEN_OBJECTS = 8  # held open at once, per source
_path = attrgetter("path")


class Source:
    """One source of the mix.

    Raises Refused: SourceNotFound, SourceEmpty, SourceChanged, and what its format refuses.
    """

    def __init__(self, config: SourceConfig, store: Store, spool: Spool, sizes: Sizes) -> None:
        self.config, self._store, self._spool, self._sizes = config, store, spool, sizes
        self._files = FileIdentities(store.uri) if is_file(config.uri) else None
        self._format = format_named(config.format, config.name)
        self._open: LRUCache[tuple[str, str], OpenObject] = LRUCache(OPEN_OBJECTS, lambda _: 1)
        self._reading = threading.Lock()  # of open objects: a loader may index for a new coordinator while it serves

    def keep_identities(self, index: Store) -> None:
        """Keeps digests of files in this store."""
        if self._files is not None:
            self._files.index = index

    @property
    def format_key(self) -> str:
        """How blocks are read, for the key of their index."""
        return (
            self.config.format
            if self.config.format in WITHOUT_TEXT_FIELD
            else f"{self.config.format}:{self.config.text_field}"
        )

    @property
    def open_objects(self) -> int:
        return len(self._open)

    @property
    def last_error(self) -> str:
        """What its store answers instead of the data, while calls are repeated."""
        return self._store.last_error

    def blocks(self, share: int = 0, shares: int = 1) -> Packed[BlockEntry]:
        """All blocks of a share, as `share` gives them."""
        return self.share(share, shares)[0]

    def share(self, share: int, shares: int) -> tuple[Packed[BlockEntry], int]:
        """The blocks of a share, not indexed yet, by (path, ordinal), and how many all shares have. Of files, those with a block
        in it are digested."""
        listed, whole = self._listed_blocks(share, shares)
        if self._files is None:
            return listed, whole
        return self._digested(listed, int(share / shares * len(listed))), whole

    def _listed_blocks(self, share: int, shares: int) -> tuple[Packed[BlockEntry], int]:
        """With the ETags of the listing."""
        numbers = count()
        extents = ((info, extent) for info in self._objects() for extent in self._extents(info))
        every = (_entry(*each) for each, _ in zip(extents, numbers, strict=False))
        found = Packed(islice(every, share, None, shares), BlockEntry)
        if not (listed := next(numbers)):
            raise self._empty("its objects hold no data; fill them, or correct uri or include")
        return found, listed

    def as_before(self, entry: BlockEntry) -> BlockEntry | None:
        """The block of a file as release 0.1 named it: by size, time and inode. None on S3."""
        return None if self._files is None else replace(entry, etag=self._listed(entry.path).etag)

    def read(self, entry: BlockEntry) -> Block:
        """One block; refused by name when the object is not the one that the index describes."""
        with self._reading:
            info = self._checked(entry)
            return self._object(info).read(Extent(entry.ordinal, entry.offset, entry.size))

    def where(self, path: str) -> str:
        return f"{self.config.uri.rstrip('/')}/{path}"

    def changed(self, path: str, how: str) -> Refused:
        return Refused(
            "SourceChanged",
            f"source {self.config.name!r}: {self.where(path)} {how}; bring the indexed content back, "
            "or start a new run (a run's data may not change under it)",
        )

    def _extents(self, info: ObjectInfo) -> list[Extent]:
        with self._reading:
            return self._object(info).extents()

    def _checked(self, entry: BlockEntry) -> ObjectInfo:
        try:
            info = self._listed(entry.path)
            etag = info.etag if info.etag == entry.etag else self._identity(info)
        except NotFound as error:
            raise self.changed(entry.path, "was indexed and is gone") from error
        if (info.size, etag) != (entry.object_size, entry.etag):
            raise self.changed(
                entry.path,
                f"was indexed with {entry.object_size} bytes ({entry.etag}) and has {info.size} ({etag}) now",
            )
        return info

    def _listed(self, path: str) -> ObjectInfo:
        return self._identified(self._store.head(path), self._store.head)

    def _digested(self, listed: Packed[BlockEntry], turn: int) -> Packed[BlockEntry]:
        """Begins with a part of the files of its own: loaders whose files are the same ones share the work."""
        assert self._files is not None
        try:
            ours = Packed(self._with_digests(listed.between(turn, len(listed))), BlockEntry)
            before = Packed(self._with_digests(listed.between(0, turn)), BlockEntry)
        finally:
            self._files.save()
        return Packed(chain(before, ours), BlockEntry) if turn else ours

    def _with_digests(self, listed: Iterator[BlockEntry]) -> Iterator[BlockEntry]:
        for _, blocks in groupby(listed, _path):
            first = next(blocks)
            etag = self._identity(_info(first))
            yield from (replace(block, etag=etag) for block in chain([first], blocks))

    def _identity(self, info: ObjectInfo) -> str:
        """The ETag that the index knows: of a file, and of its index file, the content's digest."""
        if self._files is None:
            return info.etag
        reader = self._reader(info)
        files = [reader, reader.companion(companion(info.path))] if self._is_paired else [reader]
        return " ".join(map(self._files.of, files))

    def _objects(self) -> Iterator[ObjectInfo]:
        """By path, each once: a server may list an object on two pages."""
        wanted = include_pattern(self.config.include)
        found = self._found(wanted)
        by_path = {info.path: info for info in found} if self._is_paired else {}
        if self._is_paired:
            self._check_pairs(by_path, wanted)
        mine = (i for i in found if wanted.fullmatch(i.path) and self._is_data(i.path) and self._is_object(i))
        once = (next(alike) for _, alike in groupby(mine, _path))
        count = 0
        for count, info in enumerate(once, 1):  # noqa: B007
            yield self._identified(info, lambda path: self._companion(by_path, path))
        if not found:
            raise self._empty("no object is below this uri, which names a folder; correct it, or bring the data there")
        if not count:
            of = f" with {TOKENS}" if self._is_paired else ""
            raise self._empty(
                f"{len(found)} objects are there and none{of} matches include {self.config.include!r}; correct include or uri"
            )

    def _found(self, wanted: re.Pattern[str]) -> Packed[ObjectInfo]:
        """All that the store lists, by path."""
        try:
            may = partial(may_hold, self.config.include)
            found = Packed(self._store.corpus(wanted.fullmatch, may), ObjectInfo)
        except (NotFound, BucketNotFound) as error:
            raise _not_found(self.config) from error
        in_order = all(before.path <= after.path for before, after in pairwise(found))
        return found if in_order else Packed(sorted(found), ObjectInfo)

    @property
    def _is_paired(self) -> bool:
        return self.config.format == "TokenBin"

    def _check_pairs(self, found: Mapping[str, ObjectInfo], wanted: re.Pattern[str]) -> None:
        """Refuses an index file whose tokens are not there: an upload that goes on, or was cut short."""
        tokens = (tokens_of(path) for path in found if path.endswith(INDEX))
        for path in sorted(path for path in tokens if wanted.fullmatch(path) and path not in found):
            raise Refused(
                "ObjectUnreadable",
                f"source {self.config.name!r}: {self.where(path)} is missing beside its {INDEX}; upload it, or leave it out "
                "with `include`",
            )

    def _is_data(self, path: str) -> bool:
        return not self._is_paired or path.endswith(TOKENS)

    def _is_object(self, info: ObjectInfo) -> bool:
        """Consoles mark a folder of a bucket by an empty object `folder/`: it is listed as `folder`, which is none or another."""
        if info.size > 0:
            return True
        try:
            return self._store.head(info.path) == info
        except NotFound:
            return False

    def _identified(self, info: ObjectInfo, find: Callable[[str], ObjectInfo]) -> ObjectInfo:
        """Adds the etag of its index file, if any: either file's change is a change."""
        if not self._is_paired:
            return info
        return ObjectInfo(info.path, info.size, f"{info.etag} {find(companion(info.path)).etag}")

    def _companion(self, found: Mapping[str, ObjectInfo], path: str) -> ObjectInfo:
        if path not in found:
            raise Refused(
                "ObjectUnreadable",
                f"source {self.config.name!r}: {self.where(path)} is missing; format TokenBin needs it beside its .bin",
            )
        return found[path]

    def _object(self, info: ObjectInfo) -> OpenObject:
        return self._open.get((info.path, info.etag), lambda: self._format(self._reader(info), self.config.text_field))

    def _reader(self, info: ObjectInfo) -> ObjectReader:
        return ObjectReader(self._store, info, self._spool, self.changed, self._sizes, self._same)

    def _same(self, reader: ObjectReader) -> ObjectReader | None:
        """Of a file as it is now, where that has the known content: a large archive stays open while it is touched."""
        if self._files is None or not (known := self._files.known(reader)):
            return None
        now = self._reader(self._store.head(reader.path))
        return now if self._files.of(now) == known else None

    def _empty(self, why: str) -> Refused:
        return Refused("SourceEmpty", f"source {self.config.name!r} at {self.config.uri}: {why}")


def include_pattern(glob: str) -> re.Pattern[str]:
    """A glob over relative paths: `*`, `?` stay within a folder, `**/` is zero or more folders."""
    first, *rest = re.split(r"(\*\*/|\*\*|\*)", glob or "**")
    stars, between = rest[::2], [_characters(each) for each in (first, *rest[1::2])]
    parts = (_star(*each) for each in zip(stars, [*stars[1:], ""], between[1:], strict=False))
    return re.compile("".join((between[0], *parts)), re.DOTALL)


def may_hold(glob: str, folder: str) -> bool:
    """Whether something below a folder may match a glob over relative paths."""
    parts = (glob or "**").split("/")
    fixed = next((i for i, part in enumerate(parts) if "**" in part), len(parts) - 1)
    names = folder.split("/")
    fits = all(include_pattern(part).fullmatch(name) for part, name in zip(parts[:fixed], names, strict=False))
    return fits and (fixed < len(parts) - 1 or "**" in parts[fixed] or len(names) <= fixed)


def _star(star: str, following: str, characters: str) -> str:
    """A star up to the `following` one. Where that takes in all that this one may leave, the first place of the characters
    between them will do: without a second try a glob of many stars takes no longer on a name that it does not match."""
    found = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}[star]
    is_settled = (star, following) in {("*", "*"), ("*", "**"), ("**", "**")}
    return f"(?>{found}?{characters})" if is_settled else found + characters


def _characters(glob: str) -> str:
    return "[^/]".join(map(re.escape, glob.split("?")))


def _entry(info: ObjectInfo, extent: Extent) -> BlockEntry:
    return BlockEntry(info.path, extent.ordinal, extent.offset, extent.size, info.size, info.etag)


def _info(listed: BlockEntry) -> ObjectInfo:
    return ObjectInfo(listed.path, listed.object_size, listed.etag)


def open_source(
    config: SourceConfig, secrets_dir: Path | None = None, spool: Spool | None = None, sizes: Sizes | None = None
) -> Source:
    """Raises Refused (SourceNotFound). `spool`: for blocks in use."""
    try:
        store = open_store(config.uri, config.endpoint, secrets_dir)
    except NotFound as error:
        raise _not_found(config) from error
    return Source(config, store, spool or Spool(), sizes or Sizes())


def _not_found(config: SourceConfig) -> Refused:
    why, way_out = "does not exist", "or bring the data there"
    if is_file(config.uri) and (found := file_path(config.uri)).is_file():
        why, way_out = "is a file, not a folder", f"to its folder, with `include: {found.name}`"
    return Refused(
        "SourceNotFound",
        f"source {config.name!r}: uri {config.uri!r} {why}; correct it in DataSource {config.source!r}, {way_out}",
    )
