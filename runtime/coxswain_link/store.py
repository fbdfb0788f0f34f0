"""The object store: files and S3 behind one small interface, on obstore.

What S3 may do to a call: docs/design/store.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import tenacity
from obstore.store import LocalStore

from coxswain.config import EndpointConfig
from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain.names import ENV_INCARNATION, ENV_STORE_PATIENCE
from coxswain.uris import bucket_and_prefix, file_path, is_file
from coxswain_link.files import Chooses
from coxswain_link.object_info import Listing, ObjectInfo
from coxswain_link.s3 import Access, find_access, open_s3
from coxswain_link.s3_address import check_bucket
from coxswain_link.store_attempt import PAGE, StoreAttempt, where
from coxswain_link.store_faults import (
    ERRORS,
    FULL,
    BucketNotFound,
    CorruptObject,
    Denied,
    Lasting,
    NotFound,
    ObjectChanged,
    StoreUnavailable,
    Unreadable,
    of_system,
    translated,
)

__all__ = [
    "BucketNotFound",
    "CorruptObject",
    "Denied",
    "NotFound",
    "ObjectChanged",
    "ObjectInfo",
    "Store",
    "StoreUnavailable",
    "Unreadable",
    "open_store",
    "store_patience",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

REQUESTS_AT_ONCE = 16
"""Requests that are made side by side where there may be thousands, as for indexes: 300 sources have 2,400 in use at a time."""

_PATIENCE = 60.0  # seconds for which S3 may be unavailable within one call
_ROTATION = 3  # times the patience that refused keys get: a kubelet takes up to two minutes to bring a changed Secret
_PIECE = 32 << 20  # bytes that one request reads of a range


class Store:
    """Objects under one uri; keys are relative paths.

    Raises NotFound, Refused (Denied, CorruptObject), StoreUnavailable. On S3 a call is retried for
    `patience` seconds while its error may pass; `last_error` names the error meanwhile. Refused
    credentials and a missing bucket (BucketNotFound) may pass only once they have worked, or are
    `known` to have worked; a bucket that disappears is StoreUnavailable. Refused credentials are
    waited for three times as long: their Secret may be on its way.
    """

    def __init__(
        self, backend: Any, uri: str, access: Access | None = None, patience: float = 0.0, known: bool = False,
        page_keys: int = PAGE,
    ) -> None:  # fmt: skip
        """`access`: of S3. `page_keys`: of one answer of S3."""
        self._backend, self.uri, self._access = backend, uri, access
        self._worked, self.last_error = known, ""
        self._one = StoreAttempt(backend, uri, access is not None, page_keys)
        self._again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._may_pass),
            stop=lambda state: tenacity.stop_after_delay(_patience(state, patience))(state),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5.0),
            before_sleep=self._before_retry,
            reraise=True,
        )

    def get(self, key: str) -> bytes:
        return self._ask(key, lambda: self._one.whole(key))

    def get_range(self, key: str, start: int, stop: int, etag: str = "", piece_bytes: int = _PIECE) -> bytes:
        """Bytes [start, stop), by a request for each piece. Raises ObjectChanged when `etag` is given and is not the object's."""
        pieces = [(at, min(at + piece_bytes, stop)) for at in range(start, stop, piece_bytes)]
        parts = [self._ask(key, partial(self._one.piece, key, *piece, etag)) for piece in pieces]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def put(self, key: str, data: bytes) -> None:
        self._ask(key, lambda: self._one.send(key, data))

    def create(self, key: str, data: bytes) -> bool:
        """Claims a key: True if this call made the object, False if one exists.

        Atomic on files and on S3.

        A create whose answer was lost may have succeeded, so equal content counts as ours. A store
        may answer a refused create with a generic error, so the existing object decides.
        """
        return self._ask(key, lambda: self._one.claimed(key, data))

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def head(self, key: str) -> ObjectInfo:
        return self._ask(key, lambda: self._one.head(key))

    def list(self, prefix: str = "") -> Listing:
        """All objects below a prefix, sorted by path. What fails is repeated by the page, not from the first key on."""
        return sorted(self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        after, more = "", True
        while more:
            page, more = self._ask(prefix, partial(self._one.page, prefix, after))
            yield from page
            after = page[-1].path if page else after

    def corpus(self, wanted: Chooses, may_hold: Chooses = lambda folder: True) -> Iterator[ObjectInfo]:
        """All objects, by path, of any name that others gave them: `list` leaves out files like those that a write stages.

        Raises Refused (Unreadable): for a key of S3 that obstore does not read, for a `wanted` file that cannot be read, for a
        folder that cannot be and `may_hold` one.
        """
        if self._access is not None:
            yield from self._pages("")
            return
        try:
            yield from self._one.files(wanted, may_hold)
        except ERRORS as error:
            raise self._fault(error, "") from error
        self._worked, self.last_error = True, ""

    def collect_staged(self, below: Callable[[str], object]) -> int:
        """Deletes what writers that were killed have left of objects that `below` chooses: how many files. S3 has none."""
        return self._ask("", lambda: self._one.collect_staged(below))

    def delete(self, key: str) -> None:
        """An absent object is no error."""
        try:
            self._ask(key, lambda: self._one.delete(key))
        except NotFound:
            return

    def _ask(self, key: str, work: Callable[[], T]) -> T:
        result: T = self._again(self._once, key, work)
        return result

    def _once(self, key: str, work: Callable[[], T]) -> T:
        try:
            result = work()
        except ERRORS as error:
            raise self._fault(error, key) from error
        self._worked, self.last_error = True, ""
        return result

    def _fault(self, error: Exception, key: str) -> CoxswainError:
        fault = translated(error, where(self.uri, key), self._access.origin if self._access else "")
        if isinstance(fault, Denied) and self._access is not None and self._access.fault is not None:
            return self._access.fault  # there were no credentials to send
        if isinstance(fault, NotFound):
            self._worked, self.last_error = True, ""
        return StoreUnavailable(str(fault)) if isinstance(fault, BucketNotFound) and self._worked else fault

    def _may_pass(self, error: BaseException) -> bool:
        if isinstance(error, Refused):
            return self._worked and not isinstance(error, (CorruptObject, ObjectChanged, Unreadable, Lasting))
        return isinstance(error, Retryable) and not isinstance(error, (NotFound, BucketNotFound))

    def _before_retry(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        self.last_error = str(state.outcome.exception())
        log.warning("retrying: %s", self.last_error)


def _patience(state: tenacity.RetryCallState, patience: float) -> float:
    """Seconds for which a call is repeated while it ends as it just did."""
    assert state.outcome is not None
    return patience * _ROTATION if isinstance(state.outcome.exception(), Denied) else patience


def store_patience() -> float:
    """Seconds. Raises Refused (EnvironmentInvalid)."""
    said = os.environ.get(ENV_STORE_PATIENCE) or str(_PATIENCE)
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise Refused(
            "EnvironmentInvalid",
            f"{ENV_STORE_PATIENCE} is {said!r}; allowed is a number of seconds from 0 on, such as 60",
        )
    return seconds


def _had_predecessors() -> bool:
    """Whether this pod replaces one of its member, which has reached the store."""
    return int(os.environ.get(ENV_INCARNATION, "0")) > 0


def open_store(
    uri: str,
    endpoint: EndpointConfig | None = None,
    secrets_dir: Path | None = None,
    create: bool = False,
    known: bool = False,
    patience: float | None = None,
) -> Store:
    """Opens file:///folder or s3://bucket/prefix.

    `create` makes a missing local folder (for what we write).

    `known`: another process of the job has used it, so a missing bucket may come back. The same
    holds for a pod that is not the first of its member.

    `patience`: seconds for which S3 may be unavailable within one call, instead of the job's.
    """
    if is_file(uri):
        return Store(_local(uri, file_path(uri), create), uri)
    if uri.startswith("s3://"):
        endpoint = endpoint or EndpointConfig()
        access = find_access(endpoint, secrets_dir)
        bucket, prefix = bucket_and_prefix(uri)
        check_bucket(uri, bucket)
        backend = open_s3(bucket, prefix, endpoint, access)
        waits = store_patience() if patience is None else patience
        return Store(backend, uri, access, waits, known or _had_predecessors())
    raise Refused("UnknownScheme", f"uri {uri!r}: allowed are s3://bucket/prefix and file:///folder")


def _local(uri: str, folder: Path, create: bool) -> LocalStore:
    try:
        if not create and not folder.is_dir():
            raise NotFound(f"{uri} does not exist or is not a folder")
        return LocalStore(prefix=folder, automatic_cleanup=False, mkdir=create)
    except OSError as error:
        if error.errno in FULL:
            raise StoreUnavailable(f"{uri}: {of_system(error)}") from error
        why = error.strerror or str(error)
        raise Denied(
            f"{uri} cannot be opened ({why}); give the user of the job the right to, or name another"
        ) from error
