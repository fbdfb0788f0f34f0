"""Decides what the job needs next and does it, one thing at a time, until the job has ended.

`Driver._advance` is the table of contents: the first line that applies is done, then all is looked at again.
"""

from __future__ import annotations

import time
from contextlib import suppress

from coxswain.errors import Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.membership.stream import Stream
from coxswain.wire import Fault, Finished, Manifest
from coxswain_coordinator import ending
from coxswain_coordinator.checkpoint_store import CheckpointStore
from coxswain_coordinator.checkpoints import MANIFEST_VERSION, check_batch, check_index, job_of, stream_hash
from coxswain_coordinator.committer import steps_ahead
from coxswain_coordinator.index_store import IndexStore
from coxswain_coordinator.indexing import merge, source_reports
from coxswain_coordinator.plan_log import PlanLog
from coxswain_coordinator.run import Run
from coxswain_coordinator.session import Session
from coxswain_coordinator.stalls import Watch
from coxswain_coordinator.worlds import Planner, Worlds
from coxswain_link.store import Store

_LOOK = 1.0  # seconds between two looks whether the world stands still
_LEAVE_SECONDS = 30.0  # for workers to leave after the end
_FAREWELL_SECONDS = 5.0  # for services to hear that the job has ended


class Driver:
    """The hands of the coordinator: everything that needs the store or a planner. Blocking work runs in threads."""

    def __init__(self, run: Run, store: Store, planner: Planner, author: str) -> None:
        self._run, self._durably = run, run.durably
        self._log, self._index_store = PlanLog(store), IndexStore(store)
        self._checkpoints = CheckpointStore(run.job, store)
        self._worlds = Worlds(run, self._log, self._checkpoints, planner, author)
        run.durably.watch(lambda: store.trouble)
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
        if run.catalog.index is None:
            return await self._merge_index() if run.catalog.complete else False
        if session is None or session.lost:
            return await self._worlds.form()
        if standstill := self._watch.judge(session, [line.seconds for line in run.history.recent], time.monotonic()):
            run.lose(standstill)
            return True
        if run.close_step(session):
            return True
        if (step := self._complete_checkpoint(session)) is not None:
            return await self._create_manifest(session, step)
        if run.history.piles_up:
            return await self._record(session)
        if session.needs_plans(steps_ahead(run.history.step_seconds)):
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

    # --- index --------------------------------------------------------------------------------------------------------

    async def _merge_index(self) -> bool:
        run, lengths = self._run, self._index_store.lengths
        index = await self._durably(merge, run.job.mix, run.catalog.parts())
        if run.manifest is not None:
            check_index(run.manifest, index.hash)
        run.catalog.reports = await self._durably(source_reports, run.job.mix, index, lengths)
        self._worlds.stream = Stream(run.job.mix, run.job.batch, index.views(lengths))
        run.catalog.index = index
        run.bell.ring()
        return True

    # --- plans, checkpoints, end --------------------------------------------------------------------------------------

    async def _commit(self, session: Session) -> bool:
        assert self._worlds.committer is not None
        cursor = session.cursors[session.committed]
        session.add(await self._durably(self._worlds.committer.commit, cursor, self._run.job.total_steps))
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
        await self._durably(self._checkpoints.record, step, self._run.history.before(step))
        await self._durably(self._checkpoints.create, manifest, session.saves.pending_keys())
        self._run.add_manifest(session, manifest, saving + time.monotonic() - began)
        return True

    async def _record(self, session: Session) -> bool:
        """Where checkpoints are rare, closed steps do not pile up. Steps that are done again get the same keys again."""
        history, step = self._run.history, session.book.open
        await self._durably(self._log.check_current, session.record.generation)
        await self._durably(self._checkpoints.record, step, history.before(step))
        history.recorded(step)
        return True

    def _manifest(self, session: Session, step: int) -> Manifest:
        run, cursor = self._run, session.cursors[step]
        assert run.catalog.index is not None
        return Manifest(
            version=MANIFEST_VERSION, job=job_of(run.job), step=step, attempt_generation=run.generation, cursor=cursor,
            stream_digest=session.book.stream_digests[step], tokens=cursor.offset, model_hash=run.job.model_hash(),
            stream_hash=stream_hash(run.job), index_hash=run.catalog.index.hash, vocabulary=session.world.vocabulary,
            shards=session.saves.shards(step), time=run.clock(), model=run.job.model,
            longest=run.job.batch.max_sequence_tokens,
        )  # fmt: skip

    async def _see_off(self, session: Session) -> bool:
        """All is saved: workers get the time to leave, then everybody is told."""
        ranks = len(session.world.seats)
        await self._run.bell.until(lambda: len(session.exited) >= ranks, _LEAVE_SECONDS)
        self._run.finish(ending.end_of(session))
        return True
