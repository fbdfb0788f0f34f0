"""Decides what the job needs next and does it, one thing at a time, until the job has ended.

`Driver._advance` is the table of contents: the first line that applies is done, then all is looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.layout import Layout
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor
from coxswain.plan.values import Placement
from coxswain.planlog import Generation
from coxswain.wire import Fault, Finished, Manifest, Register
from coxswain_coordinator import ending
from coxswain_coordinator.checkpoint_store import CheckpointStore
from coxswain_coordinator.checkpoints import MANIFEST_VERSION, check_batch, check_index, job_of, stream_hash
from coxswain_coordinator.committer import Committer, steps_ahead
from coxswain_coordinator.index_store import IndexStore
from coxswain_coordinator.indexing import merge, source_reports
from coxswain_coordinator.plan_log import PlanLog
from coxswain_coordinator.run import Run
from coxswain_coordinator.session import Session
from coxswain_coordinator.stalls import Watch
from coxswain_coordinator.world import capacity_fault, layout_of, replace_world, stands, vocabulary_of, world_of
from coxswain_link.store import Store

Planner = Callable[[list[int], Layout, JobConfig], Placement]
"""(sequence lengths, layout, job) -> placement of one step. The job's model has its vocabulary filled in."""

_LOOK = 1.0  # seconds between two looks whether the world stands still
_LEAVE_SECONDS = 30.0  # for workers to leave after the end
_FAREWELL_SECONDS = 5.0  # for services to hear that the job has ended


class Driver:
    """The hands of the coordinator: everything that needs the store or a planner. Blocking work runs in threads."""

    def __init__(self, run: Run, store: Store, planner: Planner, author: str) -> None:
        self._run, self._planner, self._author, self._durably = run, planner, author, run.durably
        self._log, self._index_store = PlanLog(store), IndexStore(store)
        self._checkpoints = CheckpointStore(run.job, store)
        run.durably.watch(lambda: store.trouble)
        self._stream: Stream | None = None
        self._committer: Committer | None = None
        self._watch = Watch()
        self._goodbyes = 0  # services that have been told of the end

    async def drive(self) -> Finished:
        """Runs the job to its end. Raises Retryable when the store stays away, Stale when another coordinator took over."""
        run = self._run
        try:
            await self._open()
            while run.finished is None:
                seen = run.bell.count
                if not await self._advance():
                    await run.bell.until(lambda: run.bell.count > seen, _LOOK)  # noqa: B023  at once
        except Refused as error:
            run.fail(fault := Fault(error.reason, error.message))
            return run.finished or run.finish(ending.failed(run.fault or fault))
        with suppress(Refused, Retryable, Stale):  # a good end stays one
            await self._tidy(run.finished)
        return run.finished

    async def _tidy(self, finished: Finished) -> None:
        """Nothing is being saved any more, so what a crash has kept from being dropped can go."""
        if finished.exit_code in (Exit.DONE, Exit.STOPPED):
            if self._run.session is not None:
                await self._durably(self._log.check_current, self._run.generation)
            await self._durably(self._checkpoints.tidy)

    async def farewell(self) -> None:
        """Keeps answering until every service has heard of the end, or for some seconds."""
        everybody = len(self._run.registry)
        await self._run.bell.until(lambda: self._goodbyes >= everybody, _FAREWELL_SECONDS)

    def count_goodbye(self) -> None:
        self._goodbyes += 1
        self._run.bell.ring()

    async def _open(self) -> None:
        check_batch(self._run.job)
        self._run.manifest = await self._durably(self._checkpoints.open)

    async def _advance(self) -> bool:
        """Does the next thing that can be done; False when there is nothing but to wait."""
        run, session = self._run, self._run.session
        if (end := self._ended()) is not None:
            run.finish(end)
            return True
        if run.index is None:
            return await self._merge_index() if run.shares and not run.missing_shares else False
        if session is None or session.lost:
            return await self._form_world()
        if standstill := self._watch.judge(session, [line.seconds for line in run.recent], time.monotonic()):
            run.lose(standstill)
            return True
        if run.close_step(session):
            return True
        if (step := self._complete_checkpoint(session)) is not None:
            return await self._create_manifest(session, step)
        if len(run.unsaved) >= run.most_unsaved:
            return await self._record(session)
        if session.needs_plans(steps_ahead(run.step_seconds)):
            return await self._commit(session)
        if session.saved_end:
            return await self._see_off(session)
        return False

    def _ended(self) -> Finished | None:
        run = self._run
        if run.fault is not None:
            return ending.failed(run.fault)
        over = ending.already_over(run.job, run.manifest) if run.session is None else None
        return over or ending.stopped_idle(run.stop, run.session, run.manifest)

    # --- index and world ----------------------------------------------------------------------------------------------

    async def _merge_index(self) -> bool:
        run, lengths = self._run, self._index_store.lengths
        index = await self._durably(merge, run.job.mix, tuple(run.indexed.values()))
        if run.manifest is not None:
            check_index(run.manifest, index.hash)
        run.sources = await self._durably(source_reports, run.job.mix, index, lengths)
        self._stream = Stream(run.job.mix, run.job.batch, index.views(lengths))
        run.index = index
        run.bell.ring()
        return True

    async def _form_world(self) -> bool:
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
        record = replace_world(job, number, self._author, agents, run.shares, run.manifest)
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
        return record if stands(record, self._run.job, agents, self._run.shares) else None

    async def _take_up(self, record: Generation, agents: list[Register]) -> bool:
        """Its members tell again what no checkpoint holds; until then they go on with the plans that they have."""
        run = self._run
        taken, count = await self._durably(self._log.take_over, record.generation, self._author), run.job.trainers
        if taken and not run.registry.missing("trainer", count) and agents == run.registry.of("trainer", count):
            self._enter(record, agents, lives=True)
        return True

    def _enter(self, record: Generation, agents: list[Register], lives: bool = False) -> None:
        run = self._run
        assert run.index is not None
        world = world_of(record, agents, vocabulary_of(run.job, run.index.vocabulary))
        session = Session(run.job, record, world, *self._beginning())
        job = replace(run.job, model=replace(run.job.model, vocabulary=session.world.vocabulary))

        def place(lengths: list[int]) -> Placement:
            with run.metrics["coxswain_planner_seconds"].time():
                return self._planner(lengths, record.layout, job)

        assert self._stream is not None
        self._committer = Committer(run.job, self._log, self._stream, record, place)
        run.enter(session, lives)

    def _beginning(self) -> tuple[Cursor, str]:
        """Cursor and stream digest from which the next world starts."""
        manifest = self._run.manifest
        if manifest is None:
            return initial_cursor(self._run.job.mix), STREAM_SEED
        return manifest.cursor, manifest.stream_digest

    # --- plans, checkpoints, end --------------------------------------------------------------------------------------

    async def _commit(self, session: Session) -> bool:
        assert self._committer is not None
        cursor = session.cursors[session.committed]
        session.add(await self._durably(self._committer.commit, cursor, self._run.job.total_steps))
        self._run.metrics["coxswain_committed_step"].set(session.committed - 1)
        self._run.bell.ring()
        return True

    def _complete_checkpoint(self, session: Session) -> int | None:
        """The step of a checkpoint that every rank has saved and whose stream digest is known."""
        step = session.saves.complete(len(session.world.seats))
        return step if step is not None and step <= session.book.open else None

    async def _create_manifest(self, session: Session, step: int) -> bool:
        began, saving = time.monotonic(), session.saves.seconds(step)
        manifest = self._manifest(session, step)
        await self._durably(self._log.check_current, session.record.generation)
        final = [line for line in self._run.unsaved if line.step < step]
        await self._durably(self._checkpoints.record, step, final)
        await self._durably(self._checkpoints.create, manifest, session.saves.pending_keys())
        self._run.add_manifest(session, manifest, saving + time.monotonic() - began)
        return True

    async def _record(self, session: Session) -> bool:
        """Where checkpoints are rare, closed steps do not pile up. Steps that are done again get the same keys again."""
        closed = list(self._run.unsaved)
        await self._durably(self._log.check_current, session.record.generation)
        await self._durably(self._checkpoints.record, closed[-1].step + 1, closed)
        self._run.unsaved = self._run.unsaved[len(closed) :]
        return True

    def _manifest(self, session: Session, step: int) -> Manifest:
        run, cursor = self._run, session.cursors[step]
        assert run.index is not None
        return Manifest(
            version=MANIFEST_VERSION, job=job_of(run.job), step=step, attempt_generation=run.generation, cursor=cursor,
            stream_digest=session.book.stream_digests[step], tokens=cursor.offset, model_hash=run.job.model_hash(),
            stream_hash=stream_hash(run.job), index_hash=run.index.hash, vocabulary=session.world.vocabulary,
            shards=session.saves.shards(step), time=run.clock(), model=run.job.model,
            longest=run.job.batch.max_sequence_tokens,
        )  # fmt: skip

    async def _see_off(self, session: Session) -> bool:
        """All is saved: workers get the time to leave, then everybody is told."""
        ranks = len(session.world.seats)
        await self._run.bell.until(lambda: len(session.exited) >= ranks, _LEAVE_SECONDS)
        self._run.finish(ending.end_of(session))
        return True
