"""What grows with a job, read from an API server: lists by the page, and logs a few at a time."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from coxswain.errors import Refused
from coxswain_cli.limits import raise_limit
from coxswain_cli.readers.values import Manifest
from coxswain_operator.kubernetes.connection import Connection

PAGE = 100
"""Objects of one answer. A pod has some 20 kB: all of a large job in one answer would not arrive within its deadline."""

LOGS_AT_ONCE = 32
_OWN_FILES = 32  # that the process has open besides

T = TypeVar("T")


async def list_items(connection: Connection, path: str, **params: Any) -> list[Manifest]:
    """All objects of a list; each page has the connection's deadline for itself."""
    found: list[Manifest] = []
    more: dict[str, Any] = {}
    while True:
        page = await connection.call("GET", path, limit=str(PAGE), **more, **params)
        found += page["items"] or ()
        after = (page.get("metadata") or {}).get("continue")
        if not after:
            return found
        more = {"continue": after}


async def read_logs(reads: Sequence[Callable[[], Awaitable[T]]], follow: bool) -> list[T]:
    """Results in order. Logs that are followed are all open at a time. Raises Refused where so many cannot be."""
    if follow:
        allow_files(len(reads))
    places = asyncio.Semaphore(len(reads) if follow else LOGS_AT_ONCE)

    async def one(read: Callable[[], Awaitable[T]]) -> T:
        async with places:
            return await read()

    return list(await asyncio.gather(*map(one, reads)))


def allow_files(connections: int) -> None:
    """Raises the soft limit of open files as far as is needed."""
    hard = raise_limit(resource.RLIMIT_NOFILE, connections + _OWN_FILES)
    if hard is not None:
        raise Refused(
            "LimitTooLow",
            f"`ulimit -n` is {hard} open files, and {connections} logs are followed at a time; choose one member with "
            "--trainer, --loader or --coordinator, or leave --follow out",
        )
