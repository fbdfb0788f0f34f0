"""Work that runs beside the driver, one piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class SideTask:
    """`on_end` is called once the work has ended: the driver then takes it."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._work: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work runs, or has ended and was not taken."""
        return self._work is not None

    def begin(self, work: Coroutine[None, None, None]) -> None:
        assert not self.is_busy
        self._work = asyncio.create_task(work)
        self._work.add_done_callback(lambda _: self._on_end())

    async def take(self) -> None:
        """Takes work that has ended. Raises its error."""
        if self._work is not None and self._work.done():
            await self.finish()

    async def finish(self) -> None:
        """Waits for the work that runs. Raises its error."""
        if self._work is not None:
            work, self._work = self._work, None
            await work

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
