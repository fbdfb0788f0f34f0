"""The first process of a trainer: keeps one worker a seat alive in each world, and tells the coordinator how workers end.

It decides nothing: the world comes from the coordinator, and so does the end. It never imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coxswain import names
from coxswain.errors import CoxswainError, Retryable
from coxswain.exits import Exit
from coxswain.layout import Seat
from coxswain.wire import Fault, Finished, Register, Registered, WorkerExit, World
from coxswain_link.environment import Environment, die_with_parent, leave, run_service
from coxswain_link.http import AsyncClient, Ended
from coxswain_link.metrics import Registry, build
from coxswain_link.serve import Service

log = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "coxswain_train.worker")

_POLL = 5.0  # seconds of one long poll; also how soon a coordinator that restarted knows us again
_IMPATIENCE = 0.5  # seconds until a broken poll is noticed
_GIVE_UP = 60.0  # seconds without a coordinator
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL: a worker of a past world has nothing to save
_LAST_WORK = 20.0  # seconds for workers to leave once the job has ended well: all that counts is saved by then


@dataclass(frozen=True, slots=True)
class Worker:
    """One running worker. `fault_file` is a memfd: nothing is left of it, whoever is killed."""

    generation: int
    seat: Seat
    process: asyncio.subprocess.Process
    fault_file: int

    async def end(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), _GRACE)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


class Agent:
    """Follows the world of one trainer until the job ends."""

    def __init__(
        self,
        env: Environment,
        client: AsyncClient,
        metrics: Registry,
        worker: Sequence[str] = WORKER,
        give_up: float = _GIVE_UP,
    ) -> None:
        self._env, self._client, self._metrics, self._worker, self._give_up = env, client, metrics, worker, give_up
        self._instance = secrets.token_hex(8)
        self._generation = 0
        self._crew: dict[Worker, asyncio.Task[None]] = {}
        self.registered = False

    async def run(self) -> int:
        """Exit code of the trainer. Raises Retryable when the coordinator stays away."""
        try:
            while True:
                await self._register()  # each time: a coordinator that restarted has to know us
                if (world := await self._next_world()) is not None:
                    await self._enter(world)
        except Ended as ended:
            return await self._leave(ended.finished)
        finally:
            await self._end_workers()

    async def _register(self) -> None:
        me = Register(
            role="trainer",
            name=self._env.name,
            pod=self._env.pod_name,
            instance=self._instance,
            host=self._env.pod_ip,
            port=0,
            devices=self._env.job.devices_per_trainer,
        )
        await self._client.post("/v1/register", me, Registered, deadline=self._give_up)
        self.registered = True

    async def _next_world(self) -> World | None:
        """None: no newer one yet, or the poll broke."""
        try:
            return await self._client.get("/v1/world", World, deadline=_IMPATIENCE, after=self._generation, wait=_POLL)
        except Retryable as error:
            log.warning("lost the coordinator: %s", error)
            return None

    async def _enter(self, world: World) -> None:
        """The old world's workers end before the new one's begin: they share devices."""
        await self._end_workers()
        mine = [s for s in world.seats if world.trainers[s.device.trainer] == self._env.name]
        log.info("world %d: %d worker(s) here, ranks %s", world.generation, len(mine), [s.rank for s in mine])
        if self._generation:
            self._metrics["coxswain_agent_worker_restarts_total"].inc(len(mine))
        self._generation = world.generation
        for seat in mine:
            worker = await self._start(seat)
            self._crew[worker] = asyncio.create_task(self._watch(worker))
        self._count()

    async def _start(self, seat: Seat) -> Worker:
        fault_file = os.memfd_create("coxswain-fault")
        process = await asyncio.create_subprocess_exec(
            *self._worker,
            env=worker_environment(
                os.environ, self._env, self._generation, seat, fault_file, visible_devices(os.environ)
            ),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(fault_file,),
            preexec_fn=die_with_parent,  # also covers the time before the worker's own call
        )
        return Worker(self._generation, seat, process, fault_file)

    async def _watch(self, worker: Worker) -> None:
        """Reports a worker's end, also of a world that is over: it may be the user's fault.

        What the report runs into, the world's long poll runs into as well and acts upon.
        """
        code = await worker.process.wait()
        fault = read_fault(worker.fault_file)
        log.log(
            logging.INFO if code == 0 else logging.WARNING, "rank %d ended with %d: %s", worker.seat.rank, code, fault
        )
        self._count()
        report = WorkerExit(
            generation=worker.generation,
            trainer=self._env.name,
            device=worker.seat.device.device,
            rank=worker.seat.rank,
            exit_code=code,
            fault=fault,
        )
        try:
            await self._client.post("/v1/exits", report, deadline=self._give_up)
        except CoxswainError as error:
            log.warning("exit of rank %d not reported: %s", worker.seat.rank, error)

    async def _leave(self, finished: Finished) -> int:
        """Workers know a good end from their tickets; after a failure they may wait for data or peers that never come."""
        log.info("the job has ended: %s: %s", finished.reason, finished.message)
        if self._crew and finished.exit_code in (Exit.DONE, Exit.STOPPED):
            await asyncio.wait(self._crew.values(), timeout=_LAST_WORK)
        return finished.exit_code

    async def _end_workers(self) -> None:
        """A worker that we end is no exit to report."""
        crew, self._crew = self._crew, {}
        for watcher in crew.values():
            watcher.cancel()
        await asyncio.gather(*(worker.end() for worker in crew))
        for worker in crew:
            os.close(worker.fault_file)
        self._count()

    def _count(self) -> None:
        self._metrics["coxswain_agent_workers"].set(sum(w.process.returncode is None for w in self._crew))


def worker_environment(
    inherited: Mapping[str, str], env: Environment, generation: int, seat: Seat, fault_file: int, devices: Sequence[str]
) -> dict[str, str]:
    """A worker's environment. Its last words go to the agent, not into the pod's termination message."""
    fault_path = f"/proc/self/fd/{fault_file}"
    own = {
        "COXSWAIN_GENERATION": str(generation),
        "COXSWAIN_RANK": str(seat.rank),
        "COXSWAIN_DEVICE": str(seat.device.device),
        "COXSWAIN_FAULT_FILE": fault_path,
        names.ENV_TERMINATION_LOG: fault_path,
    }
    if not devices:
        return {"OMP_NUM_THREADS": "1", **inherited, **own}  # workers, not threads, share the cores
    # A pod sees its own devices only; on one machine all pods see all, and share them out by their index.
    slot = env.index * env.job.devices_per_trainer + seat.device.device
    return {**inherited, **own, "CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]}


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> tuple[str, ...]:
    """CUDA devices of this machine, without loading CUDA."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(d.strip() for d in chosen.split(",") if d.strip())
    return tuple(str(i) for i in range(len(list(folder.glob("nvidia[0-9]*")))))


def read_fault(fault_file: int) -> Fault | None:
    """What the worker said last; None when it said nothing that can be read."""
    try:
        return msgspec.json.decode(os.pread(fault_file, 1 << 16, 0), type=Fault)
    except msgspec.DecodeError:
        return None


async def serve(env: Environment) -> int:
    """Runs the agent with its status pages until the end, or until SIGTERM."""
    metrics = build("agent")
    client = AsyncClient(env.coordinator_url, env.token)
    agent = Agent(env, client, metrics)
    status = Service(env.token, lambda: 0, metrics, lambda: agent.registered)
    await status.start(env.pod_ip, names.PORT_AGENT_HTTP)
    life = asyncio.create_task(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, life.cancel)
    try:
        return await life
    except asyncio.CancelledError:
        log.info("asked to leave")
        return Exit.RETRYABLE
    finally:
        await status.stop()
        await client.close()


def main(env: Environment) -> int:
    return asyncio.run(serve(env))


if __name__ == "__main__":
    leave(run_service(main))
