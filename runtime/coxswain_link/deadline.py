"""A deadline over all reads of a blocking call: httpx limits only the silence between two of them, also within the headers."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore


class ReadDeadline(threading.local):
    """Of the call that this thread makes."""

    def __init__(self) -> None:
        self._end = math.inf

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        self._end = time.monotonic() + seconds
        try:
            yield
        finally:
            self._end = math.inf

    def left(self, timeout: float | None) -> float | None:
        """The time-out of one read. Raises ReadTimeout when none is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer went on beyond the deadline")
        return timeout if left == math.inf else min(left, math.inf if timeout is None else timeout)


class DeadlineBackend(httpcore.SyncBackend):
    """Connections whose reads end at the deadline."""

    def __init__(self, deadline: ReadDeadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:  # fmt: skip
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Bounded(stream, self._deadline)


class _Bounded(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: ReadDeadline) -> None:
        self._stream, self._deadline = stream, deadline
        self.write, self.close, self.get_extra_info = stream.write, stream.close, stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, timeout), self._deadline)
