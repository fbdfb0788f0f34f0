"""Keeps the look-ahead of a world full: commits plans a segment at a time, beside the driver where planners may take long."""

from __future__ import annotations

import time

from coxswain.config import MixConfig
from coxswain.ladder.lead import waits_for_reports
from coxswain_coordinator.planning.committer import SEGMENT_STEPS, Committed, patience, steps_ahead
from coxswain_coordinator.planning.late_plans import LatePlans
from coxswain_coordinator.planning.mix_edits import Edits
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.manager import WorldManager
from coxswain_coordinator.world.side_task import SideTask


class LookAhead:
    """One commit at a time: two would spoil the plan log's segment."""

    def __init__(self, state: JobState, worlds: WorldManager, mixes: MixHistory, edits: Edits) -> None:
        self._state, self._store_call, self._worlds = state, state.store_executor, worlds
        self._mixes, self._edits = mixes, edits
        self._late_plans = LatePlans(state.clock)
        self._commit_task = SideTask(lambda: state.notifier.notify(Topic.ANY))

    @property
    def is_busy(self) -> bool:
        """Whether a commit runs beside the driver."""
        return self._commit_task.is_busy

    async def offer(self, mix: MixConfig) -> None:
        """Records an edit of the mix: it counts from the first step that is not committed."""
        if changed := await self._store_call(self._mixes.offer, mix):
            first = await self._store_call(self._mixes.first_step)
            self._state.change_mix(self._mixes.latest, first, changed)

    async def extend(self, session: Session) -> bool:
        """Commits the next segment if steps lack a plan. Where planners may take long, steps close meanwhile."""
        if self.is_busy or not session.needs_plans(self._ahead, self._waits):
            return False
        if self._worlds.solvers is None:
            await self._commit(session)
        else:
            self._commit_task.begin(self._commit(session))
        return True

    async def take_commit(self) -> None:
        """Takes a commit that has ended. Raises its error."""
        await self._commit_task.take()

    def cancel_commit(self) -> None:
        self._commit_task.cancel()

    @property
    def _ahead(self) -> int:
        return steps_ahead(self._state.history.step_seconds, self._state.stragglers.plans_around)

    @property
    def _waits(self) -> bool:
        """Whether a plan waits for the speeds that the last reports show. Balances that may take long get that time instead."""
        plans_around, solves = self._state.stragglers.plans_around, self._worlds.solvers is not None
        return plans_around and not solves and waits_for_reports(self._state.history.step_seconds)

    async def _commit(self, session: Session) -> None:
        run, committer = self._state, self._worlds.committer
        assert committer is not None
        if (edited := self._edits()) is not None:
            await self.offer(edited)
        cursor, in_hand = session.cursors[session.committed], session.committed - session.begun - 1
        until = time.monotonic() + patience(in_hand, run.history.step_seconds, session.started)
        committed = await self._store_call(
            committer.commit, cursor, run.job.total_steps, lambda: time.monotonic() >= until or bool(session.lost),
            session.wanted_plans(self._ahead, self._waits) if run.stragglers.plans_around else SEGMENT_STEPS,
            run.stragglers.speeds,
        )  # fmt: skip
        if session.lost:
            return
        session.add(committed)
        self._count(committed)
        run.notifier.notify(Topic.PLANS)

    def _count(self, committed: Committed) -> None:
        metrics = self._state.metrics
        metrics["coxswain_committed_step"].set(committed.next - 1)
        for plan in committed.plans:
            metrics["coxswain_planned_steps_total"].labels(plan.balance).inc()
        self._state.guarded(self._state.stragglers.planned, committed.plans)
        if (event := self._late_plans.event(committed.missing)) is not None:
            self._state.record_event(*event, warning=True)
