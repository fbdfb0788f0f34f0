"""Forms worlds: creates the next generation, or adopts one that an earlier coordinator made."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import STREAM_SEED
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor
from coxswain.plan.values import Placement
from coxswain.planlog import Generation
from coxswain.wire import Register
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.planning.committer import Committer
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.placers import Placer, Planner, Speeds, in_processes, in_turn, is_slow
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.planning.solvers import Solvers
from coxswain_coordinator.planning.strategies import Strategies
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.formation import (
    capacity_fault,
    is_adoptable,
    layout_of,
    next_generation,
    vocabulary_of,
    world_of,
)


class WorldManager:
    """Forms one world at a time; `committer` extends the plan log of the current one."""

    def __init__(
        self,
        state: JobState,
        log: PlanLog,
        mixes: MixHistory,
        checkpoints: CheckpointStore,
        planner: Planner,
        author: str,
    ) -> None:
        self._state, self._log, self._mixes, self._checkpoints = state, log, mixes, checkpoints
        self._planner, self._author, self._store_call = planner, author, state.store_executor
        self._strategies = Strategies(log, author)
        self.stream: Stream | None = None  # once the index is there
        self.committer: Committer | None = None
        self.solvers = Solvers(planner) if is_slow(state.job) else None

    async def form(self) -> bool:
        """Forms a world once every trainer is there and the replicas hold the longest sequence."""
        run = self._state
        if not run.registry.has_all("trainer", run.job.trainers):
            return False
        agents = run.registry.of("trainer", run.job.trainers)
        job = await self._with_layout(agents)
        if short := capacity_fault(job, layout_of(job, agents)):
            run.wait_for_capacity(short)
            return False
        number = await self._store_call(self._log.last_generation) + 1
        claimed = run.session is None and any(a.generation == number - 1 > 0 for a in agents)
        if claimed and (running := await self._find_adoptable(job, number - 1, agents)) is not None:
            return await self._adopt(running, agents)
        record = next_generation(job, number, self._author, agents, run.index_progress.shares, run.manifest)
        if not await self._store_call(self._log.create_generation, record):
            return True  # another coordinator was faster; check again
        if not run.registry.has_all("trainer", job.trainers) or agents != run.registry.of("trainer", job.trainers):
            return True  # a trainer left or was replaced meanwhile; the record stays unused
        if run.session is None:
            await self._store_call(self._checkpoints.collect_orphans)
        self._enter(record, agents)
        return True

    async def _with_layout(self, agents: list[Register]) -> JobConfig:
        """The job; under mode Auto with the layout that was chosen for the agents' devices, or is chosen now."""
        run, parallel = self._state, self._state.job.parallelism
        if parallel.mode != "Auto":
            return run.job
        assert self.stream is not None
        assert run.index_progress.index is not None
        vocabulary = vocabulary_of(run.job, run.index_progress.index.vocabulary)
        devices, stream = tuple(agent.devices for agent in agents), self.stream.under(self._mixes.latest)
        cursor = self._start_point()[0]
        record = await self._store_call(self._strategies.settle, run.job, vocabulary, devices, stream, cursor)
        run.take_strategy(record, record.author == self._author)
        return replace(run.job, parallelism=replace(parallel, layout=record.strategy.chosen.replicas))

    async def _find_adoptable(self, job: JobConfig, number: int, agents: list[Register]) -> Generation | None:
        """The newest generation, if its world still runs without its coordinator."""
        record = await self._store_call(self._log.generation, number)
        return record if is_adoptable(record, job, agents, self._state.index_progress.shares) else None

    async def _adopt(self, record: Generation, agents: list[Register]) -> bool:
        """Takes a running world over.

        Its members repeat what no checkpoint holds and go on meanwhile.
        """
        run = self._state
        taken, count = await self._store_call(self._log.take_over, record.generation, self._author), run.job.trainers
        if taken and run.registry.has_all("trainer", count) and agents == run.registry.of("trainer", count):
            self._enter(record, agents, adopted=True)
        return True

    def _enter(self, record: Generation, agents: list[Register], adopted: bool = False) -> None:
        run = self._state
        assert run.index_progress.index is not None
        ids = run.index_progress.index.vocabulary
        hung = run.session is not None and run.session.hung
        world = replace(world_of(record, agents, vocabulary_of(run.job, ids), ids), stacks=hung)
        session = Session(run.job, record, world, *self._start_point())
        assert self.stream is not None
        placer = self._placer(record, session.world.vocabulary)
        self.committer = Committer(run.job, self._log, self._mixes, self.stream, record, placer)
        run.enter_world(session, adopted)

    def _placer(self, record: Generation, vocabulary: int) -> Placer:
        job = replace(self._state.job, model=replace(self._state.job.model, vocabulary=vocabulary))
        seconds = self._state.metrics["coxswain_planner_seconds"]

        def place(lengths: list[int], speeds: Speeds) -> Placement:
            with seconds.time():
                return self._planner(lengths, record.layout, job, speeds)

        if self.solvers is None:
            return in_turn(place)
        return in_processes(self.solvers, self._planner, record.layout, job, seconds.observe)

    def _start_point(self) -> tuple[Cursor, str]:
        """Cursor and stream digest from which the next world starts."""
        manifest = self._state.manifest
        if manifest is None:
            return initial_cursor(self._state.job.mix), STREAM_SEED
        return manifest.cursor, manifest.stream_digest
