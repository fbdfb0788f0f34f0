"""One attempt of each store call, which verifies what it reads. Retries are in `store`."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError

from coxswain.uris import file_path
from coxswain_link.files import Chooses, Files
from coxswain_link.object_info import Listing, ObjectInfo
from coxswain_link.store_faults import (
    ERRORS,
    NO_ORDER,
    NO_S3,
    CorruptObject,
    CorruptRead,
    Lasting,
    ObjectChanged,
    StoreUnavailable,
    is_mute,
)

T = TypeVar("T")

PAGE = 1000  # keys of one answer of S3
_DIGEST = "sha256"  # of the content, in the metadata of every object that we put on S3
_OURS = re.compile("[0-9a-f]{64}")  # as we write it: programs of users keep other forms under the same name


class StoreAttempt:
    """Raises obstore's errors, CorruptRead, CorruptObject, StoreUnavailable, Lasting.

    Over http:// only TCP's 16 bits guard a body: content without a digest is read twice there.
    """

    def __init__(self, backend: Any, uri: str, remote: bool, page_keys: int = PAGE) -> None:
        self._backend, self._uri, self._remote, self._page_keys = backend, uri, remote, page_keys
        self._files = None if remote else Files(file_path(uri))
        self._unguarded = remote and str((backend.config or {}).get("endpoint", "")).startswith("http://")

    def whole(self, key: str) -> bytes:
        """The content, proved by its digest or, without one, by two equal reads."""
        if self._files is not None:
            return self._files.read(key)
        found = obstore.get(self._backend, key)
        data, digest, etag = self._body(key, found), _digest(found.attributes), found.meta["e_tag"]
        if self._proved(data, digest, _bare(etag)):
            return data
        again = self._body(key, obstore.get(self._backend, key))
        if again != data:
            raise CorruptRead(f"{where(self._uri, key)}: its content did not arrive as it was sent")
        if digest is not None:
            raise CorruptObject(where(self._uri, key))
        return data

    def _body(self, key: str, found: Any) -> bytes:
        """All bytes that the answer says it has: obstore does not count them."""
        data, (start, stop) = bytes(found.bytes()), found.range
        if len(data) != stop - start:
            raise CorruptRead(f"{where(self._uri, key)}: {len(data)} of {stop - start} bytes arrived")
        return data

    def _proved(self, data: bytes, digest: str | None, etag: str) -> bool:
        """By our own digest, by TLS, or by an ETag that is the MD5 of the content."""
        if digest is not None:
            return hashlib.sha256(data).hexdigest() == digest
        return not self._unguarded or hashlib.md5(data, usedforsecurity=False).hexdigest() == etag

    def _agreed(self, key: str, read: Callable[[], T]) -> T:
        """Reads what has no digest; twice where nothing guards it."""
        found = read()
        if self._unguarded and read() != found:
            raise CorruptRead(f"{where(self._uri, key)}: two reads of it differ")
        return found

    def piece(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        """Bytes [start, stop) of the object with this etag, or of any."""
        match = "" if etag.startswith("W/") else etag  # no condition can name a weak one
        if self._files is not None:
            return self._files.read(key, start, stop, match)
        options: Any = {"range": (start, stop)} | ({"if_match": match} if match else {})
        return self._agreed(key, lambda: self._of(etag, key, obstore.get(self._backend, key, options=options)))

    def _of(self, etag: str, key: str, found: Any) -> bytes:
        """The body of an object with this etag, if it is given: a server may ignore the condition, and a weak one is in none."""
        if etag and _bare(found.meta["e_tag"]) not in ("", _bare(etag)):
            raise ObjectChanged(where(self._uri, key))
        return self._body(key, found)

    def send(self, key: str, data: bytes) -> None:
        if self._files is not None:
            self._files.write(key, data, new=False)
        else:
            self._send(key, data, "overwrite")

    def _send(self, key: str, data: bytes, mode: Any) -> None:
        attributes = {_DIGEST: hashlib.sha256(data).hexdigest()}
        obstore.put(self._backend, key, data, attributes=attributes, mode=mode, use_multipart=False)

    def claimed(self, key: str, data: bytes) -> bool:
        """Whether this call made the object, or one with the same content exists."""
        if self._files is not None:
            return self._files.write(key, data, new=True) or self._holds(key, data)
        try:
            self._send(key, data, "create")
        except (AlreadyExistsError, *ERRORS) as error:
            if not isinstance(error, AlreadyExistsError) and not self._there(key):
                raise
            return self._holds(key, data)
        return True

    def _there(self, key: str) -> bool:
        try:
            self._head(key)
        except ERRORS as error:
            if is_mute(error):  # then the error of the create says more
                return False
            raise
        return True

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.whole(key) == data
        except CorruptObject:
            return False

    def head(self, key: str) -> ObjectInfo:
        try:
            return self._head(key)
        except ERRORS as error:
            if not self._remote or not is_mute(error):
                raise
        obstore.get_range(self._backend, key, start=0, end=1)  # a HEAD answer has no body, and so names no code
        raise StoreUnavailable(f"{where(self._uri, key)}: was missing for a moment")

    def _head(self, key: str) -> ObjectInfo:
        return _info(obstore.head(self._backend, key)) if self._files is None else self._files.head(key)

    def files(self, wanted: Chooses, may_hold: Chooses) -> Iterator[ObjectInfo]:
        """All files of a folder, of any name, by path. Raises Refused as `Files.list`."""
        assert self._files is not None
        return self._files.list(wanted, may_hold)

    def collect_staged(self, below: Callable[[str], object]) -> int:
        return 0 if self._files is None else self._files.collect_staged(below)

    def page(self, prefix: str, after: str) -> tuple[Listing, bool]:
        """The objects behind the key `after`, by path, on S3 at most a page of them; and whether there may be more."""
        listed = self._agreed(prefix, lambda: self._page(prefix, after))
        if not self._remote:
            return listed, False
        if not (listed or after):
            self._check_listing(prefix)
        found, more = list(self._in_order(prefix, after, listed)), len(listed) == self._page_keys
        if more and not found:
            raise self._unordered(prefix)
        return found, more

    def _check_listing(self, prefix: str) -> None:
        """Raises where an object is there that cannot be: obstore takes any page of HTML for an empty listing.

        An error proves nothing: servers answer a key below an object, or one that may not be read, as they like.
        """
        with suppress(*ERRORS):
            obstore.head(self._backend, f"{prefix}{secrets.token_hex(16)}")
            raise StoreUnavailable(f"{where(self._uri, prefix)}: {NO_S3}")

    def _in_order(self, prefix: str, after: str, listed: Listing) -> Iterator[ObjectInfo]:
        """What is listed, but the marks of folders behind keys that sort before their slash: obstore lists `a/` as `a`, and that
        behind `a-1`. Raises where a page does not go on, by key, behind the one before: some objects would be left out, or come
        for ever."""
        before = after
        for info in listed:
            if not (info.path or info.size):
                continue  # the mark of the uri's own folder
            is_mark = info.path <= before and not info.size
            key = f"{info.path}/" if is_mark else info.path
            if key <= before:
                raise self._unordered(prefix)
            if not is_mark:
                yield info
            before = key

    def _unordered(self, prefix: str) -> Lasting:
        return Lasting(f"{where(self._uri, prefix)}: {NO_ORDER}", "ListingUnordered")

    def _page(self, prefix: str, after: str) -> Listing:
        found = obstore.list(self._backend, prefix or None, offset=after or None, chunk_size=self._page_keys)
        listed = [_info(meta) for chunk in (islice(found, 1) if self._remote else found) for meta in chunk]
        return listed if self._remote else sorted(listed)

    def delete(self, key: str) -> None:
        obstore.delete(self._backend, key)


def where(uri: str, key: str) -> str:
    return f"{uri.rstrip('/')}/{key}"


def _digest(attributes: Mapping[Any, Any]) -> str | None:
    """Ours, in the metadata of an object; None: it has none."""
    said = str(attributes.get(_DIGEST))
    return said if _OURS.fullmatch(said) else None


def _bare(etag: str | None) -> str:
    return (etag or "").removeprefix("W/").strip('"')


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path=str(meta["path"]), size=int(meta["size"]), etag=str(meta["e_tag"] or ""))
