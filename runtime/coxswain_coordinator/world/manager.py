"""Forms worlds: creates the next generation, or adopts one that an earlier coordinator made."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.cost.constants import device_memory
from coxswain.layout import Device, Layout
from coxswain.live import LiveSource
from coxswain.membership.stream import Stream
from coxswain.plan.values import Placement
from coxswain.planlog import Generation
from coxswain.wire import CheckpointManifest, Register
from coxswain_coordinator.capacity import capacity_fault, change_fault
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.planning.committer import Committer, data_ended
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.placers import Placer, Planner, Speeds, in_processes, in_turn, is_slow
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.planning.solvers import Solvers
from coxswain_coordinator.planning.strategies import Strategies
from coxswain_coordinator.state.changes import loses_state
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.job_strategy import with_chosen
from coxswain_coordinator.state.registry import index_of
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.formation import (
    Start,
    at_checkpoint,
    digest_of,
    is_adoptable,
    layout_of,
    members_of,
    next_generation,
    start_of,
    vocabulary_of,
    world_of,
)
from coxswain_coordinator.world.living import GRACE_SECONDS, are_alive, generations_held, source_for
from coxswain_coordinator.world.presence import (
    LEAVING_SECONDS,
    LOST_SECONDS,
    NEW_SECONDS,
    are_gathered,
    least_trainers,
    still_leaving,
)
from coxswain_coordinator.world.survivors import after_loss, has_lost

log = logging.getLogger(__name__)


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
        self._waits: dict[
            str, tuple[object, float]
        ] = {}  # by what is awaited: of what, and since when by the loop's clock
        self._newest: tuple[Generation | None] | None = None  # None: not read yet

    async def form(self) -> bool:
        """Forms a world once enough trainers are there and the replicas hold the longest sequence."""
        run = self._state
        if not run.registry.present("trainer", run.changes.forming):
            return False
        newest = await self._read_newest()
        size = run.changes.forming
        if run.session is None and newest and newest.size and self._running(newest):
            size = newest.size  # the world that still runs may be larger than the job began
        present = run.able(size, least_trainers(run.job, size)) if newest else run.registry.present("trainer", size)
        patience = NEW_SECONDS if newest else float("inf")
        if run.session:
            patience = LEAVING_SECONDS if self.leaving else LOST_SECONDS
        gathered = are_gathered(run.job, size, len(present), self.waited("trainers"), patience)
        if run.session is None and newest and await self._take_over(newest, gathered):
            self._newest = None
            return True
        if gathered:
            run.spare_lost_pods(present)
        if gathered and run.judge_failures():
            return True
        agents = [agent for agent in present if index_of(agent.name) < run.changes.forming]
        return gathered and await self._create(newest.generation + 1 if newest else 1, agents)

    async def _read_newest(self) -> Generation | None:
        """The newest generation in the plan log, as it was when a world was first awaited."""
        if self._newest is None:
            number = await self._store_call(self._log.last_generation)
            self._newest = (await self._store_call(self._log.generation, number) if number else None,)
        return self._newest[0]

    async def _create(self, number: int, agents: list[Register]) -> bool:
        run = self._state
        job = await self._with_layout(agents)
        layout = await self._choose(self._layouts(job, agents), agents)
        if short := capacity_fault(job, layout):
            run.wait_for_capacity(short)
            return False
        if run.session is not None:  # one that is superseded must neither record steps nor win over its rival
            await self._store_call(self._log.check_current, run.generation)
        await self._read_checkpoint()
        if run.is_over():
            return True
        start = await self._start(layout, agents)
        if start is None:
            return False
        shares = run.index_progress.shares
        record = next_generation(job, number, self._author, agents, shares, start, layout, run.size)
        self._newest = None
        if not await self._store_call(self._log.create_generation, record):
            return True  # another coordinator was faster; check again
        fenced = self._checkpoints.collect_orphans if run.session is None else self._checkpoints.drop_belated
        await self._store_call(fenced)
        if not self._are_present(agents):
            return True  # a trainer left or was replaced meanwhile; the record stays unused
        self._enter(record, agents)
        return True

    async def _read_checkpoint(self) -> None:
        await self.resume_from(await self._store_call(self._checkpoints.newest))

    async def resume_from(self, newest: CheckpointManifest | None) -> None:
        """Takes the newest checkpoint, and reads whether the data ends before it."""
        self._state.manifest = newest
        self._state.history.saved(newest.step if newest else 0)
        self._state.data_ended = newest is not None and await self._store_call(data_ended, self._log, newest.step)

    def _are_present(self, agents: list[Register]) -> bool:
        """Whether they are as they were, but for imports that have ended meanwhile."""
        there = self._state.registry.present("trainer", self._state.changes.forming)
        return {replace(agent, starting=UNSET) for agent in agents} <= {replace(a, starting=UNSET) for a in there}

    def waited(self, what: str, of: object = None) -> float:
        """Seconds since this was first awaited, `of` just these, since the last world was entered."""
        now = asyncio.get_running_loop().time()
        if self._waits.get(what, (None, 0.0))[0] != of or what not in self._waits:
            self._waits[what] = of, now
        return now - self._waits[what][1]

    @property
    def leaving(self) -> frozenset[str]:
        """The agents that make their workers leave the world that is lost."""
        run, session = self._state, self._state.session
        return (
            still_leaving(run.leaving, session.world, session.last_heard, time.monotonic()) if session else frozenset()
        )

    def forgive(self, seconds: float) -> None:
        """Does not count a pause of this process as time in which what is awaited could come, nor as silence."""
        self._waits = {what: (of, since + seconds) for what, (of, since) in self._waits.items()}
        if self._state.session is not None:
            self._state.session.forgive(time.monotonic(), seconds)

    def _layout(self, job: JobConfig, agents: list[Register]) -> Layout:
        """The one that was requested, if it is one of just these agents' devices; else the job's."""
        return self._requested(agents) or layout_of(job, agents)

    def _requested(self, agents: list[Register]) -> Layout | None:
        return self._state.changes.layout_on([Device(index_of(a.name), d) for a in agents for d in range(a.devices)])

    def _layouts(self, job: JobConfig, agents: list[Register]) -> Sequence[Layout]:
        """Layouts of the next world, the best first: after a loss also the replicas that are whole, as they are, and where others
        have come since a change was judged. Not those of a layout that may be one that cannot run."""
        run, own, pods = self._state, self._layout(job, agents), {index_of(a.name): a.pod for a in agents}
        if run.session is None:
            return (own,)
        world, move, found = run.session.world, run.session.move, list[Layout]()
        kept = move is None or move.saves or not loses_state(world.layout, own)
        if run.session.planned and kept and not has_lost(world.layout, run.size, pods):
            return (own,)
        speeds = run.ladder.speeds_of(pods)
        known = world.vocabulary, world.layout, own, speeds, run.hardware
        run.guarded(lambda: found.extend(after_loss(job, *known)))
        failed = run.changes.failed
        return [layout for layout in found if not failed or layout.replicas != failed.replicas] or (own,)

    async def _choose(self, layouts: Sequence[Layout], agents: list[Register]) -> Layout:
        """The first that can take its state from memory, else the first."""
        for layout in layouts if len(layouts) > 1 else ():
            if await self._source(layout, agents) is not None:
                return layout
        return layouts[0]

    @property
    def _is_auto(self) -> bool:
        return self._state.job.parallelism.mode == "Auto"

    async def _with_layout(self, agents: list[Register]) -> JobConfig:
        """The job; under mode Auto with the layout that was chosen for the agents' devices, or is chosen now."""
        run = self._state
        if not self._is_auto:
            return run.job
        assert self.stream is not None
        assert run.index_progress.index is not None
        vocabulary = vocabulary_of(run.job, run.index_progress.index.vocabulary)
        devices, stream = tuple(agent.devices for agent in agents), self.stream.under(self._mixes.latest)
        cursor, nodes = at_checkpoint(run.job, run.manifest).cursor, tuple(agent.node for agent in agents)
        profile = run.hardware if run.job.parallelism.profile else None
        record = await self._store_call(
            self._strategies.settle, run.job, vocabulary, devices, stream, cursor, nodes, profile
        )
        run.take_strategy(record, record.author == self._author)
        return run.strategy.job

    # --- the state of the next world ----------------------------------------------------------------------------------

    async def _start(self, layout: Layout, agents: list[Register]) -> Start | None:
        """Where the next world begins: at living state, if all steps before it are closed; None: reports are awaited."""
        run, source = self._state, await self._source(layout, agents)
        if source is not None and (run.manifest is None or source.step >= run.manifest.step):
            if (start := await self._continued(source)) is not None:
                return start
            if self.waited("reports", of=agents) < GRACE_SECONDS:  # others may yet send theirs
                return None
            log.warning("step %d is in memory, but not all before it is reported: a checkpoint is used", source.step)
        return at_checkpoint(run.job, run.manifest)

    async def _source(self, layout: Layout, agents: list[Register]) -> LiveSource | None:
        for generation in generations_held(agents):
            before = await self._store_call(self._log.generation, generation)
            if before is not None and (source := source_for(layout, agents, before)) is not None:
                if why := await self._change_fault(before.layout, layout):
                    log.warning("the state in memory is not used, but a checkpoint: %s", why)
                    return None
                return source
        return None

    async def _change_fault(self, before: Layout, after: Layout) -> str:
        """Counts what devices hold, which may take a second, beside the event loop."""
        run = self._state
        return await self._store_call(change_fault, run.sized_job, before, after, run.registry.nodes())

    async def judge_change(self, current: Layout) -> tuple[str, bool]:
        """Why the next world could not hold what it takes from memory, empty: it can; and whether the current one saves its
        state first, since memory will not have all of it."""
        run = self._state
        agents = run.able(run.size, least_trainers(run.job, run.size))
        after = self._requested(agents) if self._is_auto else self._layout(run.job, agents)
        if after is None:
            judged = device_memory(run.job.parallelism.hardware)
            return "mode Auto chooses a layout, which may not fit beside this one" if judged else "", True
        fault = await self._change_fault(current, after)
        return fault, bool(fault) or loses_state(current, after)

    async def _continued(self, source: LiveSource) -> Start | None:
        """The start at this source, once the steps before it are closed and recorded; None: they are not."""
        run, session = self._state, self._state.session
        if session is None:
            return None
        await self._read_plans(session, source.step)
        while session.book.open < source.step and run.close_step(session, world_over=True):
            pass
        step, key = source.step, manifest_key_of(run.manifest) if run.manifest else ""
        if session.book.open != step or step not in session.cursors:
            return None
        await self._store_call(self._checkpoints.record, session.record.generation, step, run.history.before(step))
        run.history.recorded(step)
        return Start(session.cursors[step], session.book.stream_digests[step], key, source)

    async def _read_plans(self, session: Session, step: int) -> None:
        """Reads the committed plans of a world that an earlier coordinator left, up to this step."""
        while session.adopted and session.committed < step:
            assert self.committer is not None
            cursor, stop = session.cursors[session.committed], self._state.job.total_steps
            session.add(await self._store_call(self.committer.commit, cursor, stop))

    # --- worlds of an earlier coordinator -----------------------------------------------------------------------------

    def _running(self, record: Generation) -> list[Register]:
        """The present members of this generation, if one of them still runs it or holds its state; else none."""
        members = members_of(record, self._state.registry.present("trainer", 1 << 30))
        return members if any(m.held or m.generation == record.generation for m in members) else []

    async def _take_over(self, record: Generation, gathered: bool) -> bool:
        """Adopts a generation if its world still runs; once all are gathered also to go on from what its workers hold."""
        run = self._state
        members = self._running(record)
        if not members:
            return False
        chosen = await self._store_call(self._strategies.behind, record.layout) if self._is_auto else None
        job = with_chosen(run.job, chosen)
        runs = is_adoptable(record, job, members, run.index_progress.shares)
        if not runs and not (gathered and record.job == digest_of(job)):
            return False
        if not await self._store_call(self._log.take_over, record.generation, self._author):
            return True
        await self._read_checkpoint()  # the coordinator before is fenced from now on
        await self._store_call(self._checkpoints.drop_belated)
        if run.is_over():
            return True
        if record.size:
            run.changes.size = record.size
        there = run.registry.present("trainer", 1 << 30)
        if all(m in there for m in members):
            if chosen is not None:
                run.take_strategy(chosen, mine=False)
            left = not runs or run.early_exit(record.generation) is not None  # its agent may register as it was before
            self._enter(record, members, adopted=True, left=left)
            if left:
                run.leave_world("some of its workers left it while there was no coordinator")
        return True

    def _enter(self, record: Generation, agents: list[Register], adopted: bool = False, left: bool = False) -> None:
        run = self._state
        assert run.index_progress.index is not None
        ids = run.index_progress.index.vocabulary
        world = world_of(record, agents, vocabulary_of(run.job, ids), ids)
        start, saved = start_of(record, run.job, run.manifest), run.manifest.step if run.manifest else 0
        session = Session(run.job, record, world, start.cursor, start.stream_digest, saved)
        assert self.stream is not None
        placer = self._placer(record, session.world.vocabulary)
        self.committer = Committer(run.job, self._log, self._mixes, self.stream, record, placer)
        self._waits.clear()
        run.enter_world(session, adopted, left, alive=run.session is not None and are_alive(agents, run.session.record))

    def _placer(self, record: Generation, vocabulary: int) -> Placer:
        job = replace(self._state.strategy.job, model=replace(self._state.job.model, vocabulary=vocabulary))
        seconds = self._state.metrics["coxswain_planner_seconds"]

        def timed(lengths: list[int], layout: Layout, job: JobConfig, speeds: Speeds) -> Placement:
            with seconds.time():
                return self._planner(lengths, layout, job, speeds)

        if self.solvers is None:
            return in_turn(timed, record.layout, job)
        return in_processes(self.solvers, self._planner, record.layout, job, seconds.observe)
