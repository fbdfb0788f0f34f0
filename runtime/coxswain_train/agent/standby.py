"""Probes the slow devices of a trainer that have no seat in the present world, now and then. No torch here.

A device on standby has no worker. Each probe is a process of its own, which ends with it: it holds no memory of the device.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import msgspec

from coxswain.errors import CoxswainError, Stale
from coxswain.wire import ProbesWanted, StandbyProbes
from coxswain_link.environment import Environment
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_train.agent.forkserver import MESSAGE
from coxswain_train.agent.processes import WorkerHandle
from coxswain_train.worker.assignments import Probed

log = logging.getLogger(__name__)

PROBE_EVERY = 30.0
"""Seconds between two probes of a device: each computes for half a second (`engine/probe.py`)."""

_DEADLINE = 60.0  # seconds of a probe, with the start of its process: then it is killed
_REACH = 5.0  # seconds to report: what is not reported is probed again

Fork = Callable[[int], Awaitable[WorkerHandle]]
"""Begins the process that probes this device."""


class StandbyProber:
    """Between `begin` and `end` of one world."""

    def __init__(self, env: Environment, client: AsyncClient, fork: Fork, every: float = PROBE_EVERY) -> None:
        self._env, self._client, self._fork, self._every = env, client, fork, every
        self._task: asyncio.Task[None] | None = None

    def begin(self, generation: int, devices: Collection[int]) -> None:
        """`devices`: those of this trainer that are on standby. The coordinator says which of them were slow."""
        if devices and self._env.job.stragglers.changes_layouts:
            self._task = asyncio.create_task(self._run(generation, devices))

    async def end(self) -> None:
        """No process uses a device by then, but one that cannot be killed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self, generation: int, devices: Collection[int]) -> None:
        found: list[tuple[int, float]] = []
        try:
            while True:
                wanted = await self._report(StandbyProbes(generation, self._env.name, tuple(found)))
                await asyncio.sleep(self._every)
                asked = [device for device in wanted if device in devices]
                found = [(d, seconds) for d in asked if (seconds := await self._probe(d)) is not None]
        except (Stale, JobEnded):
            log.info("generation %d is over: its devices on standby are not probed any more", generation)
        except CoxswainError as error:  # training goes on without them
            log.warning("devices on standby are not probed any more in generation %d: %s", generation, error)
        except Exception:
            log.exception("devices on standby are not probed any more in generation %d", generation)

    async def _report(self, found: StandbyProbes) -> tuple[int, ...]:
        """The devices to probe next: none, where the coordinator does not answer or is of a release that asks for no probes."""
        try:
            reply = await self._client.post("/v1/probes", found, ProbesWanted, deadline=_REACH)
        except (Stale, JobEnded):
            raise
        except CoxswainError as error:
            log.info("cannot report probes of devices on standby: %s", error)
            return ()
        return reply.devices if reply else ()

    async def _probe(self, device: int) -> float | None:
        """None: its process said nothing."""
        try:
            process = await self._fork(device)
        except CoxswainError as error:
            log.warning("device %d on standby is not probed: %s", device, error)
            return None
        try:
            return await self._answer(process)
        finally:  # also where the agent goes on to the next world, or is ended
            ending = asyncio.create_task(_end(process, device))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:  # as the process ends: nothing else closes what it leaves
                await asyncio.wait({ending})
                raise

    async def _answer(self, process: WorkerHandle) -> float | None:
        try:
            async with asyncio.timeout(_DEADLINE):
                process.channel.send(b"probe")
                said = await asyncio.get_running_loop().sock_recv(process.channel, MESSAGE)
        except (TimeoutError, OSError):
            said = b""
        return msgspec.json.decode(said, type=Probed).seconds if said else None


async def _end(process: WorkerHandle, device: int) -> None:
    try:
        await process.kill()
        fault = process.read_fault()
    finally:
        await process.close()
    if fault is not None:
        log.warning("device %d on standby is not probed: %s", device, fault.message)
