"""Decides what the job needs next and does it, one thing at a time, until the job has ended.

`Driver._advance` is the table of contents: it does the first thing that applies, then starts over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from coxswain.errors import Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.membership.held_out import hold_out
from coxswain.membership.stream import Stream
from coxswain.wire import Fault, Finished
from coxswain_coordinator import termination
from coxswain_coordinator.checkpoint.claim import Claim
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.checkpoint.validation import check_batch, check_index
from coxswain_coordinator.index.merge import Index, merge, source_reports
from coxswain_coordinator.index.store import IndexStore
from coxswain_coordinator.planning.mix_edits import Edits
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.placers import Planner
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.imports import is_importing
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.registry import index_of
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.tracking.sinks import check_packages
from coxswain_coordinator.world.checkpoints import CheckpointManager
from coxswain_coordinator.world.formation import members_of
from coxswain_coordinator.world.look_ahead import LookAhead
from coxswain_coordinator.world.manager import WorldManager
from coxswain_coordinator.world.presence import LEAVING_SECONDS
from coxswain_coordinator.world.stalls import PAUSE, StallDetector
from coxswain_link.store import Store, StoreUnavailable

_STALL_CHECK_SECONDS = 1.0  # seconds between two checks for a stall
_LOOK_SECONDS = 5.0  # for the store to say whether another coordinator took over, where it may also be away
_LEAVE_SECONDS = 30.0  # for workers to exit after the end
STOP_SECONDS = 15.0  # for a world in which a stop can save the steps that no checkpoint holds
_DRAIN_SECONDS = 5.0  # for services to receive the end of the job
LONGEST_ACTION = 3600.0  # seconds for one action of the driver: the store's calls within it end by themselves before


class Driver:
    """Does everything that needs the store or a planner. Blocking work runs in threads.

    `checkpoints` has them in the store; `stall_detector` says why a world must be replaced.
    """

    def __init__(
        self,
        state: JobState,
        store: Store,
        planner: Planner,
        author: str,
        edits: Edits = lambda: None,
        claim: Claim | None = None,
    ) -> None:
        self._claim = claim
        self._state, self._store_call = state, state.store_executor
        self._log, self._index_store = PlanLog(store), IndexStore(store)
        self._mixes = MixHistory(self._log)
        self.checkpoints = CheckpointStore(state.job, store, self._log.check_held)
        self._saves = CheckpointManager(state, self._log, self.checkpoints)
        self._worlds = WorldManager(state, self._log, self._mixes, self.checkpoints, planner, author)
        self._look_ahead = LookAhead(state, self._worlds, self._mixes, edits)
        state.store_executor.watch(lambda: store.last_error)
        state.is_over = lambda: self._already_over() is not None
        self.stall_detector = StallDetector(state.job.first_step_timeout_seconds)
        self._end_acks: set[str] = set()  # instances of services that have received the end
        self._met: tuple[object, ...] = ()  # a world, and the wishes that it meets: every message asks
        self._follows = False  # workers of an earlier coordinator's world may still run
        self._advanced: float | None = None  # when the current action began, by time.monotonic()

    async def drive(self) -> Finished:
        """Runs the job to its end.

        Raises Retryable when the store stays unavailable, Stale when another coordinator took over.
        """
        run, self._advanced = self._state, time.monotonic()
        try:
            await self._open()
            while run.finished is None:
                run.log_steps()
                seen, self._advanced = run.notifier.count, time.monotonic()
                if not await self._advance():
                    run.sweeps.idle()
                    await self._await_news(seen)
            finished = run.finished
        except Refused as error:
            finished = run.finish(termination.failed(run.fail(Fault(error.reason, error.message))))
        except BaseException:
            self._saves.cancel_collection()
            raise
        finally:
            self._look_ahead.cancel_commit()
            run.ladder.close()
            run.log_steps(now=True)
        with suppress(Refused, Retryable, Stale):  # cleaning up cannot spoil a good end
            await self._saves.collect_garbage(finished)
        return finished

    async def _await_news(self, seen: int) -> None:
        """Waits for the next fact, a second at most. Where it took much longer, this process was stopped, and none could come."""
        loop, notifier = asyncio.get_running_loop(), self._state.notifier
        began = loop.time()
        await notifier.wait_until(lambda: notifier.count > seen, _STALL_CHECK_SECONDS)
        if (passed := loop.time() - began) > PAUSE:
            self._worlds.forgive(passed)

    def problem(self, now: float) -> str:
        """Why this coordinator hangs: an action that does not end. Empty: it does not hang, or has finished."""
        if self._advanced is None or self._state.finished is not None or now - self._advanced <= LONGEST_ACTION:
            return ""
        return f"the driver has not advanced for {now - self._advanced:.0f} s; at most {LONGEST_ACTION:.0f} are normal"

    async def drain(self) -> None:
        """Keeps answering until every service has received the end, or for some seconds."""
        members = self._state.registry.instances(self._state.size)
        await self._state.notifier.wait_until(lambda: self._end_acks >= members, _DRAIN_SECONDS)

    def close(self) -> None:
        """Ends the processes of planners."""
        if self._worlds.solvers is not None:
            self._worlds.solvers.close()

    def ack_end(self, instance: str) -> None:
        """`instance`: of the service that has received the end. It may receive it several times."""
        self._end_acks.add(instance)
        self._state.notifier.notify(Topic.ANY)

    async def _open(self) -> None:
        check_batch(self._state.job)
        check_packages(self._state.job)
        run = self._state
        manifest = await self._store_call(self.checkpoints.open, run.recorded_step)
        if self._claim is not None and await self._claim.acquire(self._store_call, run.wait_for_claim):
            manifest = await self._store_call(self.checkpoints.open, run.recorded_step)
        await self._store_call(self._mixes.read)
        await self._worlds.resume_from(manifest)
        self._follows = await self._store_call(self._log.read_held) > 0

    async def _advance(self) -> bool:
        """Does the next thing that can be done; False when there is nothing to do but wait."""
        run, session = self._state, self._state.session
        if self._claim is not None:
            self._claim.check()
        await self._saves.take_collection()
        self._saves.begin_collection()
        await self._look_ahead.take_commit()
        if run.is_doubtful:
            run.is_doubtful = False
            await self._check_fence()
        if (end := self._ended()) is not None:
            if end.exit_code == Exit.STOPPED:  # another coordinator may have the world that is lost here
                await self._check_fence()
            run.finish(end)
            return True
        if run.index_progress.index is None:
            return await self._merge_index() if run.index_progress.complete else False
        if session is None:
            return await self._worlds.form()
        if session.lost:
            return await self._end_world(session)
        if stall := self.stall_detector.judge(session, run.history.durations, time.monotonic(), run.trainers.place):
            await self._check_fence()  # else its ranks may be silent since they call another coordinator
            run.mark_world_hung(stall)
            return True
        if run.close_step(session):
            return True
        if session.moved:
            run.end_for_change(session)
            return True
        if await self._request_change(session):
            return True
        if await self._saves.create_manifest(session) or await self._saves.record_lines(session):
            return True
        if await self._look_ahead.extend(session):
            return True
        if session.saved_end:
            return await self._await_workers(session)
        return False

    async def _check_fence(self) -> None:
        """Raises Stale if another coordinator took over. For what ends a world or the job without a record in the store.

        A store that is away for some seconds stops none of that.
        """
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._store_call(self._log.check_held)

    async def _end_world(self, session: Session) -> bool:
        """What still arrives of a lost world counts; then forms the next."""
        if self._state.close_step(session):
            return True
        if await self._saves.create_manifest(session):
            return True
        if self._look_ahead.is_busy:  # it gives up soon, and there is one commit at a time
            return False
        return await self._worlds.form()

    async def _request_change(self, session: Session) -> bool:
        """Ends a running world at a step boundary where another layout or other trainers are wished for. What must be saved
        first, and whether the wish holds, is judged again until a rank has the directive."""
        run, world = self._state, session.world
        wishes = session, run.registry.version, run.size, run.changes.layout, run.changes.why
        if session.ending is not None or not session.started or wishes == self._met:
            return False
        agents = [m for m in run.registry.present("trainer", run.size) if not is_importing(m)]
        present, known = [index_of(m.name) for m in agents], members_of(session.record, agents)
        replaced = {index_of(m.name) for m in agents} - {index_of(m.name) for m in known}
        why = run.changes.due(world.layout, present, replaced)
        self._met = () if why else wishes
        if not why:
            return session.withdraw_move()
        fault, saves = await self._worlds.judge_change(world.layout)
        if session.move is None:  # once a change
            await self._check_fence()
        if session.lost or session.ending is not None:  # meanwhile
            return True
        requested = session.request_move(f"{why}; through a checkpoint: {fault}" if fault else why, saves)
        if requested:
            run.notifier.notify(Topic.PLANS)
        return requested

    def _ended(self) -> Finished | None:
        run = self._state
        if run.fault is not None:
            return termination.failed(run.fault)
        done = self._already_over() if run.session is None or run.session.lost else None
        idle = termination.stopped_idle(run.stop, run.session, run.manifest)
        return done or (None if idle and self._may_save() else idle)

    def _already_over(self) -> Finished | None:
        run = self._state
        return termination.already_over(run.job, run.manifest, run.data_ended)

    def _may_save(self) -> bool:
        """Whether a world may soon go on that has done more steps than are in a checkpoint: a stop then waits for it."""
        run, session = self._state, self._state.session
        if not (self._follows if session is None else session.book.open > session.saved):
            return False
        here = run.registry.present("trainer", run.changes.forming)
        holds = len(here) < run.changes.forming or any(m.held or (session is None and m.generation) for m in here)
        leaving = self._worlds.leaving
        patience = LEAVING_SECONDS if leaving else STOP_SECONDS
        return holds and self._worlds.waited("a world to stop", of=leaving) < patience

    async def _await_workers(self, session: Session) -> bool:
        """Ends the job once all is saved: first gives the workers time to exit."""
        ranks = len(session.world.seats)
        await self._state.notifier.wait_until(lambda: len(session.exited) >= ranks, _LEAVE_SECONDS)
        self._state.finish(termination.end_of(session))
        return True

    # --- index ------------------------------------------------------------------------------------

    async def _merge_index(self) -> bool:
        run = self._state
        index = await self._store_call(merge, run.job.mix, run.index_progress.parts())
        if run.manifest is not None:
            check_index(run.manifest, index.hash)
        run.index_progress.reports = await self._store_call(source_reports, run.job.mix, index, self._index_store.read)
        await self._look_ahead.offer(run.job.mix)
        await self._open_stream(index)
        run.index_progress.finish(index)
        run.notifier.notify(Topic.INDEX)
        return True

    async def _open_stream(self, index: Index) -> None:
        """The stream over an index, without the held-out documents."""
        job, views = self._state.job, index.views(self._index_store.lengths)

        def fetch(blocks: Mapping[str, Sequence[int]]) -> None:
            self._index_store.fetch(index.entries(blocks))

        held_out = await self._store_call(hold_out, job.mix, job.batch, views, job.evaluation.tokens, fetch)
        self._worlds.stream = Stream(job.mix, job.batch, views, held_out=held_out, fetch=fetch)
