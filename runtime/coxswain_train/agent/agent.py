"""The first process of a trainer: runs one worker a seat in each world, and reports to the coordinator how workers end.

It decides nothing: the world comes from the coordinator, and so does the end. It never imports torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from coxswain import names
from coxswain.errors import CoxswainError, Retryable
from coxswain.exits import Exit
from coxswain.layout import Seat
from coxswain.live import Held
from coxswain.wire import Fault, Finished, Register, Registered, WorkerExit, World
from coxswain_link import cgroup
from coxswain_link.environment import Environment, allow_open_files, end_as, write_fault
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import MetricsRegistry, build
from coxswain_train.agent.devices import fork_server_environment, trainer_devices, worker_environment
from coxswain_train.agent.network import interface_environment
from coxswain_train.agent.processes import KILLED, ForkServer, ForkServerEnded, WorkerHandle
from coxswain_train.agent.standby import PROBE_EVERY, StandbyProber

log = logging.getLogger(__name__)

FORK_SERVER = (sys.executable, "-m", "coxswain_train.agent.forkserver", "coxswain_train.worker.worker")

STANDBY_PROBE = "coxswain_train.worker.standby_probe"

_POLL = 15.0  # seconds of one long poll: the end of a coordinator cuts it short
POLL_DEADLINE = 0.5  # seconds until a broken poll is noticed
_GIVE_UP = 60.0  # seconds without a coordinator
_MORE_MEMORY = (
    "raise resources.limits.memory of container trainer in spec.trainers.template.spec.containers, under `cox run` the limit of "
    "its control group, or lower hybridData.tokensPerReplica"
)
_LAST_WORK = 20.0  # seconds for workers to leave once the job has ended well: the checkpoint is saved by then
JOIN_TIMEOUT = 5.0  # seconds for a worker to join the next world; then it is killed and replaced
LEAVE_SECONDS = 60.0  # more for one to leave a world that did not hang: nothing cuts short what a device computes


class ImportsHang(Retryable):
    """What workers import is not there in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"what workers import was not there within {seconds:g} s (spec.firstStepTimeoutSeconds); look at what this trainer's "
            "node mounts, or raise it"
        )


class Agent:
    """Follows the world of one trainer until the job ends. `forks` makes what starts workers, of its command."""

    def __init__(
        self,
        env: Environment,
        client: AsyncClient,
        metrics: MetricsRegistry,
        fork_server: Sequence[str] = FORK_SERVER,
        forks: Callable[[Sequence[str], Mapping[str, str]], ForkServer] = ForkServer,
        give_up: float = _GIVE_UP,
        join_timeout: float = JOIN_TIMEOUT,
        oom_kills: Callable[[], int] = cgroup.oom_kills,
        probe_every: float = PROBE_EVERY,
        probe: str = STANDBY_PROBE,
    ) -> None:
        self._env, self._client, self._metrics = env, client, metrics
        self._give_up, self._join_timeout = give_up, join_timeout
        self._probe = probe  # a module with a `work`
        self._instance = secrets.token_hex(8)
        self._generation = 0
        self._left = -1  # the generation of the world that all workers have left
        self._news = asyncio.Event()  # a worker has left its world
        self._devices = trainer_devices(env.job, os.environ)
        inherited = {**os.environ, **interface_environment(os.environ)}
        self._fork_server = forks(fork_server, fork_server_environment(inherited, self._devices))
        self._workers: dict[WorkerHandle, asyncio.Task[None]] = {}
        self._standby = StandbyProber(env, client, self._fork_probe, probe_every)
        self._oom_kills, self._known_kills = oom_kills, oom_kills()
        self._oom: Fault | None = None  # of a worker that was killed for its memory
        self._error: BaseException | None = None  # of a task that nothing awaits
        self.registered = False

    async def run(self) -> int:
        """Exit code of the trainer. Raises Retryable when the coordinator stays away."""
        start = asyncio.create_task(self._await_fork_server())
        try:
            await self._fork_server.warm()  # while the loaders index
            while self._oom is None:
                await self._fork_server.check()
                if self._error is not None:
                    raise self._error
                reply = await self._register()  # each time: the coordinator may have restarted
                if reply.lost and self._left != self._generation:
                    await self._leave_world(reply)
                elif (world := await self._next_world()) is not None:
                    await self._enter(world)
            write_fault(self._env.termination_log, self._oom)
            return Exit.RETRYABLE
        except ForkServerEnded as error:
            if (fault := self._oom_fault("the process that forks the workers", error.code)) is None:
                raise
            write_fault(self._env.termination_log, fault)
            return Exit.RETRYABLE
        except JobEnded as ended:
            return await self._leave(ended.finished)
        finally:
            start.cancel()
            await self._standby.end()
            try:
                await _all(self._stop_worker(worker) for worker in list(self._workers))
            finally:
                await self._fork_server.end()

    async def _await_fork_server(self) -> None:
        """Registers again once workers can be imported, or ends the agent where they cannot."""
        await self._fork_server.known.wait()
        self._news.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that nothing awaits. Its error ends the agent: no exit would be reported, or no answer of a worker heard."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._take_error)
        return task

    def _take_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._news.set()

    async def _register(self) -> Registered:
        self._news.clear()
        inside = [worker.is_running and worker.left is None for worker in self._workers]
        is_out, left = self._left == self._generation, [w.left for w in self._workers if w.is_running and w.left]
        me = Register(
            role="trainer",
            name=self._env.name,
            pod=self._env.pod_name,
            instance=self._instance,
            host=self._env.pod_ip,
            port=0,
            devices=self._env.job.devices_per_trainer,
            generation=self._generation if not is_out and (any(inside) or not inside) else 0,
            node=self._env.node,
            config=self._env.config,
            held=self._held() or UNSET,
            left=self._generation if self._generation and (is_out or not all(inside)) else UNSET,
            broken=next((said.why for said in left if said.why), UNSET),
            fault=next((said.fault for said in left if said.fault), UNSET),
            starting=UNSET if self._fork_server.is_ready else True,
        )
        reply = await self._client.post("/v1/register", me, Registered, deadline=self._give_up)
        self.registered = True
        assert reply is not None
        return reply

    def _held(self) -> tuple[Held, ...]:
        """What workers hold that are in no world."""
        said = ((worker.device, worker.left) for worker in self._workers if worker.is_running)
        return tuple(replace(held, device=device) for device, left in said if left for held in left.held)

    async def _next_world(self) -> World | None:
        """None: no newer one yet, or the poll broke."""
        query: dict[str, Any] = {"after": self._generation, "wait": _POLL, "instance": self._instance}
        poll = asyncio.create_task(self._client.get("/v1/world", World, deadline=POLL_DEADLINE, **query))
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait({poll, news}, return_when=asyncio.FIRST_COMPLETED)
            return await poll if poll.done() else None
        except Retryable as error:
            log.warning("the coordinator is unreachable: %s", error)
            return None
        finally:
            poll.cancel()
            news.cancel()
            await asyncio.gather(poll, news, return_exceptions=True)

    async def _leave_world(self, reply: Registered) -> None:
        """Makes running workers leave a world that is over: the next one may take its state from what they hold."""
        if reply.stacks:
            self._dump_stacks()
        patience = 0.0 if reply.stacks else LEAVE_SECONDS
        await _all(self._part(worker, patience) for worker in list(self._workers) if worker.is_running)
        self._left = self._generation

    async def _part(self, worker: WorkerHandle, patience: float) -> None:
        """Waits until a worker has left its world; one that does not (it hangs, or is stopped) is killed and holds nothing."""
        if worker.left is None:
            worker.leave(self._generation)
        if not await worker.wait_left(self._join_timeout, patience):
            log.warning("rank %d did not leave its world: killing it", worker.assignment.rank)
            await self._stop_worker(worker)

    async def _enter(self, world: World) -> None:
        """Keeps running workers over into the new world. Those without a seat end first: workers share devices."""
        mine = {s.device.device: s for s in world.seats if world.trainers[s.device.trainer] == self._env.name}
        log.info("world %d: ranks %s on this trainer", world.generation, [s.rank for s in mine.values()])
        await self._standby.end()
        await _all(self._stop_worker(w) for w in list(self._workers) if not w.is_running or w.device not in mine)
        first, self._generation = not self._generation, world.generation
        kept = {worker.device for worker in self._workers}
        await _all(self._reseat(worker, mine[worker.device]) for worker in list(self._workers))
        await _all(self._seat(seat, first) for device, seat in mine.items() if device not in kept)
        idle = {d.device for d in world.layout.standby if world.trainers[d.trainer] == self._env.name}
        self._standby.begin(world.generation, idle)

    async def _reseat(self, worker: WorkerHandle, seat: Seat) -> None:
        """Assigns a running worker to the new world; replaces one that does not join (it hangs, or is stopped)."""
        worker.assign(self._generation, seat)
        if not await worker.wait_joined(self._join_timeout):
            log.warning("rank %d did not join its world within %g s: killing it", seat.rank, self._join_timeout)
            await self._stop_worker(worker)
            await self._seat(seat, first=False)

    def _dump_stacks(self) -> None:
        """The workers still hang where they hung: they leave the world after this."""
        for worker in self._workers:
            log.warning("the world hung; stacks of rank %d follow", worker.assignment.rank)
            worker.signal(signal.SIGUSR1)

    async def _await_imports(self) -> None:
        """Raises ImportsHang: a mount may never answer, and peers wait in the world meanwhile."""
        limit = self._env.job.first_step_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await self._fork_server.known.wait()
        except TimeoutError:
            raise ImportsHang(limit) from None

    async def _seat(self, seat: Seat, first: bool) -> None:
        device = seat.device.device
        await self._await_imports()
        worker = await self._fork_server.fork(device, worker_environment(self._env, device, self._devices))
        worker.assign(self._generation, seat)
        worker.listener = self._begin(worker.listen(self._news.set))
        self._workers[worker] = self._begin(self._watch(worker))
        if not first:
            self._metrics["coxswain_agent_worker_restarts_total"].inc()
        self._count()

    async def _fork_probe(self, device: int) -> WorkerHandle:
        environment = worker_environment(self._env, device, self._devices)
        return await self._fork_server.fork(device, environment, self._probe)

    async def _watch(self, worker: WorkerHandle) -> None:
        """Reports a worker's exit, also from a world that is over: it may be the user's fault.

        Only logs a failed report: the long poll for the world fails likewise and acts on it.
        """
        code = await asyncio.shield(worker.ended)
        rank = worker.assignment.rank
        fault = worker.read_fault() or self._oom_fault(f"rank {rank}", code)
        log.log(logging.INFO if code == 0 else logging.WARNING, "rank %d exited with %d: %s", rank, code, fault)
        self._count()
        report = WorkerExit(
            generation=worker.assignment.generation,
            trainer=self._env.name,
            device=worker.device,
            rank=rank,
            exit_code=code,
            fault=fault,
        )
        try:
            await self._client.post("/v1/exits", report, deadline=self._give_up)
        except CoxswainError as error:
            log.warning("cannot report the exit of rank %d: %s", rank, error)

    def _oom_fault(self, what: str, code: int) -> Fault | None:
        """If the kernel killed it for its memory, the trainer leaves too, as where the kernel kills a whole container."""
        if code != KILLED or self._oom_kills() <= self._known_kills:
            return None
        self._oom = Fault("OOMKilled", f"{cgroup.killed_for_memory(what)}: {_MORE_MEMORY}", retryable=True)
        return self._oom

    async def _leave(self, finished: Finished) -> int:
        """Waits after a good end for workers that are in a world: their directives say so. Else they may wait for lost peers."""
        log.info("the job has ended: %s: %s", finished.reason, finished.message)
        inside = [watch for worker, watch in self._workers.items() if worker.left is None]
        if inside and finished.exit_code in (Exit.DONE, Exit.STOPPED):
            await asyncio.wait(inside, timeout=_LAST_WORK)
        return end_as(finished, self._env)

    async def _stop_worker(self, worker: WorkerHandle) -> None:
        """Ends a worker without a report of its exit."""
        watch = self._workers.pop(worker)
        watch.cancel()
        try:
            await worker.end()
        finally:  # also where the agent itself is ended meanwhile
            await worker.close()
        self._count()

    def _count(self) -> None:
        self._metrics["coxswain_agent_workers"].set(sum(w.is_running for w in self._workers))


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raises the first error once all have ended: a worker that one of them starts behind it would be closed by nothing."""
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if ended is not None:
            raise ended


async def serve(env: Environment, port: int = names.PORT_AGENT_HTTP) -> int:
    """Runs the agent with its status pages, which are on this port, until the end, or until SIGTERM."""
    metrics = build("agent")
    client = AsyncClient(env.coordinator_url, env.token)
    agent = Agent(env, client, metrics)
    status = HttpService(env.token, lambda: 0, metrics, lambda: agent.registered)
    await status.start(env.pod_ip, port)
    running = asyncio.create_task(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        log.info("leaving on SIGTERM")
        return Exit.RETRYABLE
    finally:
        await status.stop()
        await client.close()


def main(env: Environment) -> int:
    allow_open_files()  # workers inherit it: each has a connection to many of its peers
    return asyncio.run(serve(env))
