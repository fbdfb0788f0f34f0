"""Decides what the job needs next and does it, one thing at a time, until the job has ended.

`Driver._advance` is the table of contents: the first line that applies is done, then all is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tenacity
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused, Retryable
from coxswain.exits import Exit
from coxswain.layout import Layout
from coxswain.membership.stream import Stream, exhausted, initial_cursor
from coxswain.membership.types import Cursor
from coxswain.plan.types import Placement
from coxswain.wire import Fault, Finished, Manifest
from coxswain_coordinator.checkpoint_store import CheckpointStore
from coxswain_coordinator.checkpoints import MANIFEST_VERSION, check_index, job_of, manifest_key_of, stream_hash
from coxswain_coordinator.committer import Committer, steps_ahead
from coxswain_coordinator.index_store import IndexStore
from coxswain_coordinator.indexing import merge, source_reports
from coxswain_coordinator.plan_log import PlanLog
from coxswain_coordinator.run import Run
from coxswain_coordinator.session import Session
from coxswain_coordinator.world import capacity_fault, layout_of, replace_world, world_of
from coxswain_link.store import Store

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

Planner = Callable[[list[int], Layout, JobConfig], Placement]
"""(sequence lengths, layout, job) -> placement of one step. The job's model has its vocabulary filled in."""

_STORE_PATIENCE = 60.0  # seconds for which a store may be away
_LEAVE_SECONDS = 30.0  # for workers to leave after the end
_FAREWELL_SECONDS = 5.0  # for services to hear that the job has ended


class Driver:
    """The hands of the coordinator: everything that needs the store or a planner. Blocking work runs in threads."""

    def __init__(self, run: Run, store: Store, planner: Planner, author: str) -> None:
        self._run, self._planner, self._author = run, planner, author
        self._log, self._index_store = PlanLog(store), IndexStore(store)
        self._checkpoints = CheckpointStore(run.job, store)
        self._stream: Stream | None = None
        self._committer: Committer | None = None
        self._goodbyes = 0  # services that have been told of the end

    async def drive(self) -> Finished:
        """Runs the job to its end. Raises Retryable when the store stays away, Stale when another coordinator took over."""
        try:
            await self._open()
            while self._run.finished is None:
                seen = self._run.bell.count
                if not await self._advance():
                    await self._run.bell.after(seen)
        except Refused as error:
            self._fail(Fault(error.reason, error.message))
        assert self._run.finished is not None
        return self._run.finished

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
        if await self._durably(self._checkpoints.collect_orphans):
            log.info("deleted shards that no checkpoint names")

    async def _advance(self) -> bool:
        """Does the next thing that can be done; False when there is nothing but to wait."""
        run, session = self._run, self._run.session
        if run.fault is not None:
            return self._fail(run.fault)
        if session is None and self._over_already():
            return self._finish_early()
        if (session is None or session.lost) and run.stop is not None and run.stop.at_step < 0:
            return self._finish(
                Exit.STOPPED, "Suspended", f"suspended at step {self._base_step()}: no worker was running"
            )
        if run.index is None:
            return await self._merge_index() if run.shares and not run.missing_shares else False
        if session is None or session.lost:
            return await self._form_world()
        if self._close_step(session):
            return True
        if await self._create_manifest(session):
            return True
        if session.needs_plans(steps_ahead(self._step_seconds())):
            return await self._commit(session)
        if session.saved_end:
            return await self._end(session)
        return False

    # --- index and world ----------------------------------------------------------------------------------------------

    async def _merge_index(self) -> bool:
        run, lengths = self._run, self._index_store.lengths
        index = merge(run.job.mix, run.indexed.values())
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
        run.short = capacity_fault(job, layout_of(job, agents))
        if run.short:
            return False
        vocabulary = self._vocabulary()
        number = await self._durably(self._log.last_generation) + 1
        record = replace_world(job, number, self._author, agents, run.shares, run.manifest)
        if not await self._durably(self._log.create_generation, record):
            return True  # another coordinator was faster; look again
        if run.registry.missing("trainer", job.trainers) or agents != run.registry.of("trainer", job.trainers):
            return True  # a trainer went or was replaced meanwhile; the record stands unused
        self._enter(Session(job, record, world_of(record, agents, vocabulary), *self._beginning()))
        return True

    def _enter(self, session: Session) -> None:
        run, record, before = self._run, session.record, self._run.session
        if run.stop is not None:
            session.request_stop(before.stop_at if before and before.stop_at is not None else run.stop.at_step)
        self._announce(session, before)
        assert self._stream is not None
        job, planner = with_vocabulary(run.job, session.world.vocabulary), self._planner
        place = _timed(run, lambda lengths: planner(lengths, record.layout, job))
        self._committer = Committer(run.job, self._log, self._stream, record, place)
        run.session = session
        run.metrics["coxswain_world_generation"].set(record.generation)
        run.bell.ring()

    def _announce(self, session: Session, before: Session | None) -> None:
        record, run = session.record, self._run
        ranks, summary = len(session.world.seats), record.layout.summary()
        if before is not None:
            run.note(
                "WorkerRestarted", f"{before.lost}; generation {record.generation} from step {record.first_step}", True
            )
        elif run.manifest is not None:
            run.note(
                "Resumed", f"generation {record.generation} from step {record.first_step}: {ranks} ranks, {summary}"
            )
        else:
            run.note("GangStarted", f"generation {record.generation}: {ranks} ranks, {summary}")

    def _base_step(self) -> int:
        return self._run.manifest.step if self._run.manifest else 0

    def _beginning(self) -> tuple[Cursor, str]:
        manifest = self._run.manifest
        if manifest is None:
            return initial_cursor(self._run.job.mix), STREAM_SEED
        return manifest.cursor, manifest.stream_digest

    def _vocabulary(self) -> int:
        """Rows of the embedding."""
        assert self._run.index is not None
        size, fixed = self._run.index.vocabulary, self._run.job.model.vocabulary
        if fixed and fixed < size:
            raise Refused(
                "VocabularyTooSmall",
                f"model.config.vocabulary is {fixed}, the tokenizer has {size} ids; give at least {size}, or 0 to follow it",
            )
        return fixed or -(-size // 64) * 64

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _commit(self, session: Session) -> bool:
        assert self._committer is not None
        cursor = session.cursors[session.committed]
        session.add(await self._durably(self._committer.commit, cursor, self._run.job.total_steps))
        self._run.metrics["coxswain_committed_step"].set(session.committed - 1)
        self._run.bell.ring()
        return True

    def _close_step(self, session: Session) -> bool:
        run, plan = self._run, session.open_plan()
        closed = session.book.close(plan, run.clock()) if plan is not None else None
        if closed is None:
            return False
        line, timing = closed
        run.steps.append(line)
        run.timings.append(timing)
        if not run.recent and run.best == 0:
            run.note("TrainingStarted", f"step {line.step} is done, loss {line.loss:.4f}")
        if session.book.open > run.best:
            run.best, run.failures = session.book.open, 0
        run.recent.append(line)
        session.forget_before(session.book.open)
        _observe(run, session)
        run.bell.ring()
        return True

    def _step_seconds(self) -> float:
        recent = self._run.recent
        return sum(line.seconds for line in recent) / len(recent) if recent else 0.0

    # --- checkpoints and the end ---------------------------------------------------------------------------------------

    async def _create_manifest(self, session: Session) -> bool:
        step = session.saves.complete(len(session.world.seats))
        if step is None or session.book.open < step:
            return False
        began, run = time.monotonic(), self._run
        manifest = self._manifest(session, step)
        await self._durably(self._checkpoints.create, manifest, session.saves.pending_keys())
        run.manifest, run.manifests = manifest, run.manifests + 1
        run.metrics["coxswain_checkpoint_step"].set(step)
        run.metrics["coxswain_checkpoint_seconds"].observe(session.saves.seconds(step) + time.monotonic() - began)
        if run.manifests % 10 == 1:
            run.note("CheckpointSaved", f"{manifest_key_of(manifest)}, {len(manifest.shards)} shards")
        session.mark_saved(step)
        run.bell.ring()
        return True

    def _manifest(self, session: Session, step: int) -> Manifest:
        run, cursor = self._run, session.cursors[step]
        assert run.index is not None
        return Manifest(
            version=MANIFEST_VERSION, job=job_of(run.job), step=step, attempt_generation=run.generation, cursor=cursor,
            stream_digest=session.book.stream_digests[step], tokens=cursor.offset, model_hash=run.job.model_hash(),
            stream_hash=stream_hash(run.job), index_hash=run.index.hash, vocabulary=session.world.vocabulary,
            shards=session.saves.shards(step), time=run.clock(),
        )  # fmt: skip

    async def _end(self, session: Session) -> bool:
        """All is saved: wait for the workers to leave, then tell everybody."""
        assert session.ending is not None
        ranks = len(session.world.seats)
        await self._run.bell.until(lambda: len(session.exited) >= ranks, _LEAVE_SECONDS)
        if session.ending.end == "Suspended":
            return self._finish(Exit.STOPPED, "Suspended", f"suspended before step {session.ending.step}")
        reason = "DataExhausted" if session.exhausted else "StopReached"
        return self._finish(Exit.DONE, reason, f"completed {session.ending.step} steps")

    def _over_already(self) -> bool:
        manifest, job = self._run.manifest, self._run.job
        return manifest is not None and (manifest.step >= job.total_steps or exhausted(job.mix, manifest.cursor))

    def _finish_early(self) -> bool:
        """The newest checkpoint is the end: nothing is left to do."""
        manifest = self._run.manifest
        assert manifest is not None
        reason = "StopReached" if manifest.step >= self._run.job.total_steps else "DataExhausted"
        return self._finish(Exit.DONE, reason, f"completed {manifest.step} steps")

    def _fail(self, fault: Fault) -> bool:
        self._run.fault = fault
        self._run.note("Failed", f"{fault.reason}: {fault.message}", warning=True)
        return self._set_finished(Exit.RETRYABLE if fault.retryable else Exit.USER_FAULT, fault.reason, fault.message)

    def _finish(self, code: Exit, reason: str, message: str) -> bool:
        self._run.note("Completed" if code == Exit.DONE else "Suspended", f"{message} ({reason})")
        return self._set_finished(code, reason, message)

    def _set_finished(self, code: Exit, reason: str, message: str) -> bool:
        log.info("%s: %s", reason, message)
        self._run.finished = Finished(int(code), reason, message)
        self._run.bell.ring()
        return True

    async def _durably(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs blocking work in a thread, again and again while the store is away, for a minute."""

        def tell(state: tenacity.RetryCallState) -> None:
            assert state.outcome is not None
            self._run.trouble = str(state.outcome.exception())
            log.warning("the store: %s", self._run.trouble)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Retryable), stop=tenacity.stop_after_delay(_STORE_PATIENCE),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0), before_sleep=tell, reraise=True,
        )  # fmt: skip
        result: T = await retrying(asyncio.to_thread, work, *args, **kwargs)
        self._run.trouble = ""
        return result


def with_vocabulary(job: JobConfig, vocabulary: int) -> JobConfig:
    return replace(job, model=replace(job.model, vocabulary=vocabulary))


def check_batch(job: JobConfig) -> None:
    if job.batch.max_sequence_tokens > job.batch.tokens_per_step:
        raise Refused(
            "BatchTooSmall",
            f"batch.tokensPerStep is {job.batch.tokens_per_step}; it must be at least batch.maxSequenceTokens "
            f"({job.batch.max_sequence_tokens}), else steps would be empty",
        )


def _timed(run: Run, place: Callable[[list[int]], Placement]) -> Callable[[list[int]], Placement]:
    def timed(lengths: list[int]) -> Placement:
        with run.metrics["coxswain_planner_seconds"].time():
            return place(lengths)

    return timed


def _observe(run: Run, session: Session) -> None:
    """Metrics of the step that has just been closed."""
    line, metrics = run.recent[-1], run.metrics
    metrics["coxswain_step"].set(line.step)
    metrics["coxswain_loss"].set(line.loss)
    metrics["coxswain_step_seconds"].observe(line.seconds)
    metrics["coxswain_idle_fraction"].set(line.idle_fraction)
    metrics["coxswain_makespan_over_bound"].set(line.makespan_over_bound)
    for source, tokens in line.tokens_by_source.items():
        metrics["coxswain_tokens_total"].labels(source).inc(tokens)
