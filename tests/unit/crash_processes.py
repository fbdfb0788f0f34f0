"""Worker processes as their agent sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from coxswain.errors import Retryable, Stale
from coxswain.layout import Seat
from coxswain_link.http_client import JobEnded
from coxswain_train.worker.assignments import Assignment, Left
from tests.unit.crash_living import Live, LivingWorker
from tests.unit.crash_worker import PeerLost


class Process:
    """A worker's process as its agent sees it (for a real one: `WorkerHandle`)."""

    seat: Seat | None = None
    joined: Assignment | None = None
    left: Left | None = None
    listener: asyncio.Task[None] | None = None

    def __init__(self, device: int, make: Callable[[Live, Assignment], Awaitable[LivingWorker]]) -> None:
        self.device, self._make, self._live = device, make, Live()
        self.assignment, self._over = Assignment(0, 0), 0
        self.changed, self.ended = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._orders, self._notify = asyncio.Event(), lambda: None
        self._inside: asyncio.Task[int | None] | None = None
        self._worker: LivingWorker | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def assign(self, generation: int, seat: Seat) -> None:
        self.assignment, self.seat, self.left = Assignment(generation, seat.rank), seat, None
        self._order()

    def leave(self, generation: int) -> None:
        self._over = generation
        self._order()
        if self._inside is None and self.joined is not None and self.is_running:
            self._say("")

    async def wait_joined(self, deadline: float) -> bool:
        return await self._wait(lambda: self.joined == self.assignment, deadline)

    async def wait_left(self, deadline: float, patience: float = 0.0) -> bool:
        return await self._wait(lambda: self.left is not None, deadline)

    async def listen(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def signal(self, number: int) -> None:
        """Stacks are of no use here."""

    def read_fault(self) -> None:
        return None

    async def end(self) -> None:
        self.kill()

    async def close(self) -> None:
        """Holds no descriptors."""

    def kill(self) -> None:
        """A SIGKILL."""
        if self.is_running:
            self.ended.set_result(-9)
            self.changed.set()
            self._task.cancel()
            if self._inside is not None:
                self._inside.cancel()
                self._inside.add_done_callback(lambda task: task.cancelled() or task.exception())
            if self._worker is not None:
                self._worker.close()

    async def _wait(self, holds: Callable[[], bool], deadline: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                while self.is_running and not holds():
                    self.changed.clear()
                    await self.changed.wait()
                return True
        return False

    def _order(self) -> None:
        self._orders.set()
        if self._inside is not None:
            self._inside.cancel()

    def _say(self, why: str) -> None:
        if self.joined is not None and self.left is None and self.joined == self.assignment:
            self.left = Left(self.joined.generation, self._live.held(), why)
            self._notify()
            self.changed.set()

    async def _run(self) -> None:
        while True:
            while self.assignment.generation <= max(self._over, self.joined.generation if self.joined else 0):
                self._orders.clear()
                await self._orders.wait()
            if self._worker is not None:
                self._worker.close()
                self._worker = None
            self.joined = order = self.assignment
            self.changed.set()
            self._inside = asyncio.create_task(self._train(order))
            await asyncio.wait({self._inside})
            task, self._inside = self._inside, None
            broke = None if task.cancelled() else task.exception()
            if broke is not None and not isinstance(broke, (PeerLost, Stale, Retryable, JobEnded)):
                self.fault(broke)
                raise broke
            if isinstance(broke, JobEnded) or (not task.cancelled() and broke is None and task.result() is not None):
                code = broke.finished.exit_code if isinstance(broke, JobEnded) else task.result()
                self._task = asyncio.create_task(asyncio.sleep(0))
                self.ended.set_result(code)
                self.changed.set()
                if self._worker is not None:
                    self._worker.close()
                return
            if self._worker is not None:
                await self._worker.leave()
            self._say(f"{type(broke).__name__}: {broke}" if broke else "")

    fault: Callable[[BaseException], None] = staticmethod(lambda error: None)

    async def _train(self, order: Assignment) -> int | None:
        self._worker = await self._make(self._live, order)
        return await self._worker.train()


class ForkServer:
    """Makes processes, and knows those of one agent."""

    def __init__(
        self, make: Callable[[Live, Assignment], Awaitable[LivingWorker]], fault: Callable[[BaseException], None]
    ) -> None:
        self._make, self._fault, self.made = make, fault, list[Process]()
        self.is_ready, self.known = False, asyncio.Event()

    async def warm(self) -> None:
        """Nothing is imported."""
        self.is_ready = True
        self.known.set()

    async def check(self) -> None:
        """It does not end before that."""

    async def fork(self, device: int, environment: Mapping[str, str]) -> Process:
        process = Process(device, self._make)
        process.fault = self._fault
        self.made.append(process)
        return process

    async def end(self) -> None:
        for process in self.made:
            process.kill()
