"""How worlds come to be: the next generation, or one that has lived on without the coordinator that made it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import STREAM_SEED
from coxswain.layout import Layout
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor
from coxswain.plan.values import Placement
from coxswain.planlog import Generation
from coxswain.wire import Register
from coxswain_coordinator.checkpoint_store import CheckpointStore
from coxswain_coordinator.committer import Committer
from coxswain_coordinator.plan_log import PlanLog
from coxswain_coordinator.run import Run
from coxswain_coordinator.session import Session
from coxswain_coordinator.world import capacity_fault, layout_of, replace_world, stands, vocabulary_of, world_of

Planner = Callable[[list[int], Layout, JobConfig], Placement]
"""(sequence lengths, layout, job) -> placement of one step. The job's model has its vocabulary filled in."""


class Worlds:
    """Makes them, one at a time; `committer` extends the plan log for the one at hand."""

    def __init__(self, run: Run, log: PlanLog, checkpoints: CheckpointStore, planner: Planner, author: str) -> None:
        self._run, self._log, self._checkpoints = run, log, checkpoints
        self._planner, self._author, self._durably = planner, author, run.durably
        self.stream: Stream | None = None  # once the index is there
        self.committer: Committer | None = None

    async def form(self) -> bool:
        """The next generation, once every trainer is there and their replicas can hold the longest sequence."""
        run, job = self._run, self._run.job
        if run.registry.missing("trainer", job.trainers):
            return False
        agents = run.registry.of("trainer", job.trainers)
        if short := capacity_fault(job, layout_of(job, agents)):
            run.wait_for(short)
            return False
        number = await self._durably(self._log.last_generation) + 1
        claimed = run.session is None and any(a.generation == number - 1 > 0 for a in agents)
        if claimed and (lives := await self._standing(number - 1, agents)) is not None:
            return await self._take_up(lives, agents)
        record = replace_world(job, number, self._author, agents, run.catalog.shares, run.manifest)
        if not await self._durably(self._log.create_generation, record):
            return True  # another coordinator was faster; look again
        if run.registry.missing("trainer", job.trainers) or agents != run.registry.of("trainer", job.trainers):
            return True  # a trainer went or was replaced meanwhile; the record stands unused
        if run.session is None:
            await self._durably(self._checkpoints.collect_orphans)
        self._enter(record, agents)
        return True

    async def _standing(self, number: int, agents: list[Register]) -> Generation | None:
        """The newest generation, if its world lives on without the coordinator that made it."""
        record = await self._durably(self._log.generation, number)
        return record if stands(record, self._run.job, agents, self._run.catalog.shares) else None

    async def _take_up(self, record: Generation, agents: list[Register]) -> bool:
        """Its members tell again what no checkpoint holds; until then they go on with the plans that they have."""
        run = self._run
        taken, count = await self._durably(self._log.take_over, record.generation, self._author), run.job.trainers
        if taken and not run.registry.missing("trainer", count) and agents == run.registry.of("trainer", count):
            self._enter(record, agents, lives=True)
        return True

    def _enter(self, record: Generation, agents: list[Register], lives: bool = False) -> None:
        run = self._run
        assert run.catalog.index is not None
        world = world_of(record, agents, vocabulary_of(run.job, run.catalog.index.vocabulary))
        session = Session(run.job, record, world, *self._beginning())
        job = replace(run.job, model=replace(run.job.model, vocabulary=session.world.vocabulary))

        def place(lengths: list[int]) -> Placement:
            with run.metrics["coxswain_planner_seconds"].time():
                return self._planner(lengths, record.layout, job)

        assert self.stream is not None
        self.committer = Committer(run.job, self._log, self.stream, record, place)
        run.enter(session, lives)

    def _beginning(self) -> tuple[Cursor, str]:
        """Cursor and stream digest from which the next world starts."""
        manifest = self._run.manifest
        if manifest is None:
            return initial_cursor(self._run.job.mix), STREAM_SEED
        return manifest.cursor, manifest.stream_digest
