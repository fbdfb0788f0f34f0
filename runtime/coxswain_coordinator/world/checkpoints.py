"""Makes checkpoints of what ranks have saved, and deletes beside the driver what is no longer kept."""

from __future__ import annotations

import time

from coxswain.exits import Exit
from coxswain.wire import CheckpointManifest, Finished
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.checkpoint.validation import job_of, stream_hash, version_of
from coxswain_coordinator.planning.committer import SEGMENT_STEPS
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.side_task import SideTask


class CheckpointManager:
    """The driver calls one method at a time. Store calls run in threads and raise what the store raises."""

    def __init__(self, state: JobState, log: PlanLog, store: CheckpointStore) -> None:
        self._state, self._log, self._store, self._store_call = state, log, store, state.store_executor
        self._collection = SideTask(lambda: state.notifier.notify(Topic.ANY))
        self._uncollected = False  # whether a manifest has come that no collection has seen

    # --- checkpoints ------------------------------------------------------------------------------

    async def create_manifest(self, session: Session) -> bool:
        """Makes the checkpoint that every rank has saved and whose stream digest is known, if there is one."""
        step = session.pending.complete(len(session.world.seats))
        if step is None or step > session.book.open:
            return False
        began, saving = time.monotonic(), session.pending.seconds(step)
        manifest = self._manifest(session, step)
        await self._store_lines(session, step)
        await self._store_call(self._store.create, manifest)
        self._state.add_manifest(session, manifest, saving + time.monotonic() - began)
        self._uncollected = True
        return True

    async def record_lines(self, session: Session) -> bool:
        """Stores the lines of closed steps between rare checkpoints, once there are many."""
        history, step = self._state.history, session.book.open
        if not history.piles_up:
            return False
        await self._store_lines(session, step)
        history.recorded(step)
        return True

    async def _store_lines(self, session: Session, step: int) -> None:
        """Stores the lines before this step. Raises Stale if another coordinator took over."""
        generation = session.record.generation
        await self._store_call(self._log.check_current, generation)
        await self._store_call(self._store.record, generation, step, self._state.history.before(step))

    def _manifest(self, session: Session, step: int) -> CheckpointManifest:
        run, cursor = self._state, session.cursors[step]
        assert run.index_progress.index is not None
        shards = session.pending.shards(step)
        return CheckpointManifest(
            version=version_of(shards), job=job_of(run.job), step=step, attempt_generation=run.generation, cursor=cursor,
            stream_digest=session.book.stream_digests[step], tokens=cursor.offset, model_hash=run.job.model_hash(),
            stream_hash=stream_hash(run.job), index_hash=run.index_progress.index.hash, vocabulary=session.world.vocabulary,
            shards=shards, time=run.clock(), model=run.job.model,
            longest=run.job.batch.max_sequence_tokens, tokenizer=run.job.mix.sources[0].tokenizer,
            optimizer_kind=run.job.optimizer.kind, ids=session.world.ids,
        )  # fmt: skip

    # --- garbage ----------------------------------------------------------------------------------

    async def take_collection(self) -> None:
        """Takes a collection that has ended. Raises its error."""
        await self._collection.take()

    def begin_collection(self) -> None:
        """Begins the next collection where a manifest has come and none is under way."""
        if self._uncollected and not self._collection.is_busy:
            self._uncollected = False
            self._collection.begin(self._collect())

    async def _collect(self) -> None:
        """Deletes what is no longer kept. Steps, plans and stall checks do not wait for thousands of deletions."""
        more = True
        while more:
            await self._store_call(self._log.check_current, self._state.generation)
            more = await self._store_call(self._store.collect, self._pending_keys)
        await self._store_call(self._collect_placements)

    def _pending_keys(self) -> set[str]:
        """Of what ranks save now, whichever world they are in by then."""
        return self._state.session.pending.pending_keys() if self._state.session else set()

    def _collect_placements(self) -> None:
        """Deletes plans of steps that no world begins with again. Blocking."""
        self._store.delete(self._log.placements_before(self._store.resumable // SEGMENT_STEPS))

    async def collect_garbage(self, finished: Finished) -> None:
        """Waits for the collection under way, then after a good end deletes what a crash left behind. Call it at the job's end,
        when no save is under way."""
        await self._collection.finish()
        if finished.exit_code in (Exit.DONE, Exit.STOPPED):
            await self._store_call(self._store.collect_garbage)
            await self._store_call(self._collect_placements)

    def cancel_collection(self) -> None:
        self._collection.cancel()
