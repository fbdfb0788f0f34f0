"""What the operator needs before it can act: asked for until the API server gives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coxswain.errors import Retryable
from coxswain_operator.backoff import asked_by
from coxswain_operator.cluster import Denied
from coxswain_operator.repeated_line import RepeatedLine

log = logging.getLogger(__name__)

T = TypeVar("T")
PAUSE_SECONDS = 2.0


async def until_given(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats while the server is away, and while it forbids the call: rights may be granted later."""
    line = RepeatedLine(log)
    while True:
        try:
            return await ask()
        except (Retryable, Denied) as error:
            line.warn(f"{error}; asking again")
            await asyncio.sleep(max(PAUSE_SECONDS, asked_by(error)))
