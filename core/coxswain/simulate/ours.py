"""Coxswain in virtual time: the detector and its probe, the ladder and the layout planner as the coordinator calls them."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from coxswain.ladder.decide import decide
from coxswain.ladder.lead import heeds_suspects, steps_until_placed
from coxswain.ladder.options import at_speeds, can_gain, draft_of, options_for, without_lost
from coxswain.ladder.speeds import bucket, changed, speed_of
from coxswain.ladder.standby import Standby, due
from coxswain.ladder.values import LEAST_GAIN, Action, Change, Options, Plan, Relayout, ReplaceNode, Speeds, View
from coxswain.layout import Device, Layout
from coxswain.plan.layouts.result import layout_of
from coxswain.plan.layouts.rivals import data_only
from coxswain.plan.layouts.settle import Draft
from coxswain.simulate.run import Measured, Run
from coxswain.simulate.senses import Senses
from coxswain.simulate.world import World, load_seconds, planning_seconds
from coxswain.stragglers.values import Report, State


class Ours:
    """`copies`: optimizer state has a copy on another node, so that a loss costs one step. `senses`: see and probe the ranks."""

    def __init__(
        self,
        seed: int,
        action: Action = "Migrate",
        copies: bool = True,
        name: str = "ours",
        senses: Senses | None = None,
    ) -> None:
        self.name, self._action, self._copies = name, action, copies
        self._senses = senses or Senses(seed)
        self._layout: Layout | None = None
        self._powers: dict[Device, int] = {}  # of STEP, by slow device
        self._dead: frozenset[Device] = frozenset()
        self._placed: dict[Device, float] = {}
        self._planned: dict[Device, float] = {}
        self._since: dict[Device, int] = {}
        self._standby = Standby()
        self._changes: list[Change] = []
        self._recent: list[float] = []
        self._ready: tuple[float, Options] | None = None  # what is being planned, and until when
        self._options: Options | None = None
        self._least_gain = LEAST_GAIN  # 0 in a layout that was taken at once
        self.suspects: dict[Device, int] = {}  # powers that placements heed before a probe has answered
        self._pending: list[tuple[int, Draft]] = []  # placements by new speeds, and their first step
        self._replaced: dict[int, int] = {}  # how often each node was
        self._spares: list[float] = []  # when each spare node is well

    @property
    def speeds(self) -> dict[Device, float]:
        """Of confirmed slow devices, and 0 of lost ones."""
        slow = {device: speed_of(power) for device, power in sorted(self._powers.items())}
        return slow | dict.fromkeys(sorted(self._dead), 0.0)

    def _first(self, run: Run) -> None:
        self._spares = [0.0] * run.settings.spares
        self._begin(run, run.draft)

    def _begin(self, run: Run, draft: Draft) -> None:
        """A new layout: ranks have new places; what was planned from the old one is void."""
        self._layout = layout_of(draft, run.world.costs.cluster)
        self._senses.begin(run, draft, self._layout, self._replaced)
        self._ready, self._options, self._least_gain = None, None, LEAST_GAIN
        self._recent, self._pending, self.suspects = [], [], {}

    def stepped(self, run: Run, measured: Measured) -> None:
        if self._layout is None:
            self._first(run)
        self._recent = [*self._recent[-4:], measured.seconds]
        if report := self._senses.observe(run, measured):
            self._learn(run, report)
        self._attend(run)
        if self._action not in ("None", "Warn"):
            self._act(run)

    def _learn(self, run: Run, report: Report) -> None:
        """What the detector says of the ranks, what probes say of standby devices, and which devices are gone."""
        before, self._dead = self._dead, run.truth.lost
        seats, working = self._senses.seats, self._senses.rank_of
        powers = {d: p for d, p in self._powers.items() if d not in working and d not in self._dead}
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            device = seats[rank]
            powers[device] = bucket(float(report.slowdowns[rank]), self._powers.get(device, 0))
        had, self._powers = self._powers, powers
        heeded = report.heeded(heeds_suspects(self._recent[-1], run.world.costs.limit is not None))
        self.suspects = {
            d: bucket(float(heeded[r]), 0) for r, d in enumerate(seats) if heeded[r] > 1 and d not in powers
        }
        self._since |= dict.fromkeys(changed(had, powers) | (before ^ self._dead), run.steps)
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            if seats[rank] not in had:
                self._since[seats[rank]] = int(report.since[rank])

    def _attend(self, run: Run) -> None:
        """Standby devices are probed now and then, beside training."""
        for device in due(self._standby.waiting, run.steps):
            slowdown = self._senses.aside(run, device)
            if math.isfinite(slowdown) and self._standby.probed(device, slowdown):
                self._powers.pop(device, None)
                self._since[device] = run.steps

    def _act(self, run: Run) -> None:
        if self._ready and run.now >= self._ready[0]:
            self._options, self._ready = self._ready[1], None
        while self._pending and run.steps >= self._pending[0][0]:
            run.use(self._pending.pop(0)[1])
        if not (self.speeds or self.suspects or self._placed or self._planned):
            return
        self._place(run)
        rung = decide(self._view(run))
        if isinstance(rung, Plan):
            self._plan(run, rung.speeds)
        elif isinstance(rung, Relayout):
            self._relayout(run, rung)
        elif isinstance(rung, ReplaceNode):
            self._replace(run, rung)

    def _view(self, run: Run) -> View:
        assert self._layout
        spare = any(t <= run.now for t in self._spares)
        return View(
            action=self._action, step=run.steps + 1, layout=self._layout, seconds=median(self._recent), speeds=self.speeds,
            planned=self._planned, since=self._since, options=self._options,
            nodes={d: str(d.trainer) for d in self._powers}, changes=tuple(self._changes), least_gain=self._least_gain,
            replace=run.settings.replace if spare else None,
        )  # fmt: skip

    def _place(self, run: Run) -> None:
        """Placements follow speeds by themselves."""
        speeds = self.speeds | {device: speed_of(power) for device, power in self.suspects.items()}
        if speeds == self._placed:
            return
        self._placed = speeds
        draft = data_only(at_speeds(run.world.costs, speeds), run.draft)
        if draft:
            self._pending.append((run.steps + steps_until_placed(self._recent[-1]), draft))
            run.rebalances += 1

    def _plan(self, run: Run, speeds: Speeds) -> None:
        """Beside training. A plan for speeds that have changed meanwhile is made again."""
        if self._ready and self._ready[1].speeds == speeds:
            return
        assert self._layout
        options = _options(run.world, self._layout, dict(speeds), self._least_gain)
        took = planning_seconds(run.world.costs.cluster.devices) * run.truth.planning
        took = took if can_gain(options.stay, options.healthy, self._least_gain) else 0.0
        run.plans += 1
        self._ready = run.now + took, options
        if not took and self._recent:
            self._act(run)

    def _relayout(self, run: Run, rung: Relayout) -> None:
        self._changes.append(Change(run.steps + 1, rung.kind, rung.devices))
        self._enter(run, rung.layout, rung.cost)

    def _replace(self, run: Run, rung: ReplaceNode) -> None:
        """Training stands still until it goes on with a spare node of new devices. The old one is a spare once it is well."""
        self._changes.append(Change(run.steps + 1, "ReplaceNode", rung.devices))
        assert self._layout
        node = int(rung.node)
        self._spares.remove(min(self._spares))
        self._spares.append(run.timeline.replaced(node, run.now))
        self._replaced[node] = self._replaced.get(node, 0) + 1
        self._powers = {d: power for d, power in self._powers.items() if d.trainer != node}
        self._since |= dict.fromkeys(rung.devices, run.steps + 1)
        planned = self._planned
        self._enter(run, self._layout, run.settings.replace, "replacement")
        self._planned = planned  # the layout is still the one for the old node: a better one may follow

    def _enter(self, run: Run, layout: Layout, cost: float, cause: str = "migration") -> None:
        costs = at_speeds(run.world.costs, self.speeds)
        draft = data_only(costs, draft_of(costs, layout))
        assert draft
        run.change(draft, cost, cause)
        self._placed, self._planned = dict(self.speeds), dict(self.speeds)
        self._begin(run, draft)
        assert self._layout
        self._standby.settle(self.speeds, self._layout.standby, run.steps)

    def lost(self, run: Run) -> bool:
        """Survivors go on from memory; without copies, or after a second loss meanwhile, or where training stood still, from the
        checkpoint.

        At once without the replicas that lost a device: a better layout follows. Where none is whole they plan first, as mode
        Auto does.
        """
        if self._layout is None:
            self._first(run)
        before = run.truth.lost
        run.wait(run.settings.loss, "losses")
        gone = run.truth.lost
        self._dead = gone
        self._powers = {d: power for d, power in self._powers.items() if d not in gone}
        self._since |= dict.fromkeys(gone, run.steps)
        if len(gone) == run.world.costs.cluster.devices:
            return False
        assert self._layout
        whole = self._copies and gone == before and not run.stopped
        quick = without_lost(run.world.costs, self._layout, self.speeds) if whole else None
        if quick:
            self._enter(run, quick.layout, quick.change + self._from_copies(run))
            self._least_gain = 0.0
            self._plan(run, self.speeds)
            return True
        options = _options(run.world, self._layout, dict(self.speeds), LEAST_GAIN)
        run.plans += 1
        run.wait(planning_seconds(run.world.costs.cluster.devices) * run.truth.planning, "planning")
        if not options.layouts:
            return False
        best = min(options.layouts, key=lambda o: o.seconds)
        if not whole:
            run.redo()
            run.wait(run.settings.restart + load_seconds(run.world), "restart")
        self._changes.append(Change(run.steps + 1, best.kind, frozenset(gone)))
        self._enter(run, best.layout, best.change + self._from_copies(run))
        return True

    def _from_copies(self, run: Run) -> float:
        """Seconds in which the copies of lost shards reach their new owners: each from one holder."""
        costs = run.world.costs
        shard = 12 * costs.elements(1, costs.model.layers, True, True) / len(self._senses.seats)
        return shard / costs.between


def _options(world: World, layout: Layout, speeds: Speeds, least_gain: float) -> Options:
    """Planned once for all runs of a world; each run is charged for it."""
    key = layout, frozenset(speeds.items()), least_gain
    if key not in world.options:
        world.options[key] = options_for(world.costs, layout, speeds, least_gain=least_gain)
    return world.options[key]
