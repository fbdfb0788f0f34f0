"""Faults of a call on its way to a server and back, and their schedules, for the tests' proxies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import aiohttp
from aiohttp import web

C = TypeVar("C")
F = TypeVar("F")

_HOP = frozenset({"content-length", "transfer-encoding", "connection", "expect"})


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answers in the server's place. `after`: seconds, as Retry-After."""

    status: int
    reason: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class Lose:
    """The server executes the call, and the answer is lost."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks in the middle of the answer."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The answer comes, after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Corrupt:
    """One bit of the answer's body flips, in the byte at this share of its length."""

    at: float = 0.5


@dataclass(frozen=True, slots=True)
class Shorten:
    """The answer's body lacks its second half, and no header of the transport says so."""


Plan: TypeAlias = Callable[[C], F | None]


def every(nth: int, applies: Callable[[C], bool], fault: F) -> Plan[C, F]:
    """Each n-th of the calls that it applies to, the first included."""
    seen = 0

    def plan(call: C) -> F | None:
        nonlocal seen
        seen += applies(call)
        return fault if applies(call) and seen % nth == 1 % nth else None

    return plan


def drawn_from(seed: int, share: float, choices: Callable[[C], tuple[F, ...]]) -> Plan[C, F]:
    """A fault for this share of all calls, from those that fit the call: each kind as often as it is among them, so that few
    calls meet all kinds."""
    draw, used = random.Random(seed), Counter[type[F]]()

    def plan(call: C) -> F | None:
        if draw.random() >= share:
            return None
        found = choices(call)
        kinds = Counter(map(type, found))
        least = min(used[kind] / kinds[kind] for kind in kinds)
        fault = draw.choice([f for f in found if used[type(f)] / kinds[type(f)] == least])
        used[type(fault)] += 1
        return fault

    return plan


def flipped(body: bytes, fault: Corrupt) -> bytes:
    """The body with one bit changed; an empty one stays as it is."""
    at = min(int(len(body) * fault.at), len(body) - 1)
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if body else body


def dropped(request: web.Request) -> web.StreamResponse:
    """The connection is gone; the response goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def cut_off(request: web.Request, status: int, headers: Mapping[str, str], body: bytes) -> web.StreamResponse:
    """An answer whose second half never comes."""
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    return dropped(request)


def passed_on(headers: Mapping[str, str], *but: str) -> dict[str, str]:
    """The headers that belong to the message and not to one connection, without those named."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP.union(but)}


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Of a watch: each whole, however it arrives."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
