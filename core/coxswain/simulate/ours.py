"""Coxswain in virtual time: the detector and its probe, the ladder and the layout planner as the coordinator calls them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np

from coxswain.ladder.decide import decide, slow
from coxswain.ladder.options import at_speeds, draft_of, options_for
from coxswain.ladder.standby import Waiting, due
from coxswain.ladder.values import Action, Change, Option, Options, Plan, Rebalance, Relayout, Speeds, View
from coxswain.layout import Device, Layout
from coxswain.plan.layouts.result import layout_of
from coxswain.plan.layouts.rivals import data_only
from coxswain.plan.layouts.settle import Draft
from coxswain.simulate.run import Measured, Run, World, load_seconds, planning_seconds
from coxswain.simulate.truth import Truth
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.values import Floats, Place, Report, State, Step

NOISE = 0.02  # sigma of a rank's compute in one step; of the probe a half
SPREAD = 0.04  # healthy devices differ by up to so much for good
PROBE = 0.1  # seconds of one round of the probe on a healthy device
ROUNDS = 5
SHORT, LONG = 4096.0, 32768.0  # tokens of a replica's longest sequence where its step takes 1 and 1.5 times as long
LEAD = 3  # steps until new speeds are in the placements
BUCKET = 1.04  # slowdowns are rounded to powers of it, so that plans can be kept


def bucketed(slowdown: float) -> float:
    """The speed of a device for planning."""
    return round(BUCKET ** -round(math.log(slowdown) / math.log(BUCKET)), 4)


class Ours:
    """`copies`: optimizer state has a copy on another node, so that a loss costs one step."""

    def __init__(self, seed: int, action: Action = "Migrate", copies: bool = True, name: str = "ours") -> None:
        self.name, self._action, self._copies = name, action, copies
        self._noise = np.random.default_rng(seed)
        self._layout: Layout | None = None
        self._detector: Detector | None = None
        self._speeds: dict[Device, float] = {}
        self._placed: dict[Device, float] = {}
        self._planned: dict[Device, float] = {}
        self._since: dict[Device, int] = {}
        self._waiting: dict[Device, Waiting] = {}
        self._returns: dict[Device, int] = {}
        self._changes: list[Change] = []
        self._recent: list[float] = []
        self._ready: tuple[float, Options] | None = None  # what is being planned, and until when
        self._options: Options | None = None
        self._pending: tuple[int, Draft] | None = None  # placements by new speeds, and their first step

    def _begin(self, run: Run, draft: Draft) -> None:
        """A new layout: ranks have new places; what was planned from the old one is void."""
        self._layout = layout_of(draft, run.world.costs.cluster)
        seats = self._layout.ranks()
        places = [
            Place(s.replica, s.stage, s.tensor, s.device.trainer, s.device.device, s.device.trainer) for s in seats
        ]
        self._detector = self._detector.moved(places) if self._detector else Detector(places)
        self._seats = [s.device for s in seats]
        self._replicas = np.array([s.replica for s in seats])
        self._work = np.array([self._stage_work(run, draft, s.replica, s.stage) for s in seats])
        self._natural = np.array([self._own(run, d) for d in self._seats])
        self._ready = self._options = self._pending = None
        self._recent = []

    def _stage_work(self, run: Run, draft: Draft, replica: int, stage: int) -> float:
        """Seconds of one micro-batch at speed 1."""
        chain = draft.chains[replica]
        group = chain.groups[stage]._replace(slowdown=1.0)
        loss = run.world.costs.loss_seconds(group) if stage == len(chain.groups) - 1 else 0.0
        return run.world.costs.layer_seconds(group.degree, 1.0) * chain.layers[stage] + loss

    def _own(self, run: Run, device: Device) -> float:
        """How much a healthy device differs from others for good; the same in every run."""
        number = device.trainer * run.trace.devices + device.device
        return 1 + SPREAD * (2 * (number * 0.6180339887 % 1) - 1)

    def stepped(self, run: Run, measured: Measured) -> None:
        if self._layout is None:
            self._begin(run, run.draft)
        assert self._detector
        self._recent = [*self._recent[-4:], measured.seconds]
        report = self._detector.observe(self._figures(run, measured))
        self._learn(run, self._probed(run, report) if report.probes else report)
        self._attend(run)
        if self._action not in ("None", "Warn"):
            self._act(run)

    def _figures(self, run: Run, measured: Measured) -> Step:
        true = np.sum([part * self._true(truth) for part, truth in measured.parts], axis=0)
        work = self._work * np.array(run.draft.counts)[self._replicas]
        compute = work * true * measured.long[self._replicas] * self._random(NOISE, len(work))
        for rank, seconds in measured.pauses.items():
            compute[rank] += seconds
        return Step(run.steps, compute, work, SHORT + (LONG - SHORT) * 2 * (measured.long[self._replicas] - 1))

    def _true(self, truth: Truth) -> Floats:
        found = np.array([truth.slowdowns[d.trainer][d.device] for d in self._seats]) * self._natural * truth.fleet
        return np.where(np.isfinite(found), found, 1.0)

    def _random(self, sigma: float, count: int) -> Floats:
        found: Floats = np.exp(self._noise.normal(0, sigma, count))
        return found

    def _probed(self, run: Run, report: Report) -> Report:
        """Ranks probe before the next step, which takes as long as the slowest one does; the answers count at once."""
        assert self._detector
        true, ranks = self._true(run.truth), list(report.probes)
        run.wait(ROUNDS * PROBE * float(true[ranks].max()), "probes")
        rounds = np.minimum.reduce([self._random(NOISE / 2, len(true)) for _ in range(ROUNDS)])
        none = np.full(len(true), np.nan)
        answers = {rank: float(PROBE * true[rank] * rounds[rank]) for rank in ranks}
        return self._detector.observe(Step(run.steps, none, none, probes=answers))

    def _learn(self, run: Run, report: Report) -> None:
        """What the detector says of the ranks, what probes say of standby devices, and which devices are gone."""
        gone, used = run.truth.lost, set(self._seats)
        speeds = {d: s for d, s in self._speeds.items() if s and d not in used and d not in gone}
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            speeds[self._seats[rank]] = bucketed(float(report.slowdowns[rank]))
        speeds |= dict.fromkeys(gone, 0.0)
        for device in {*speeds, *self._speeds}:
            if speeds.get(device, 1.0) != self._speeds.get(device, 1.0):
                self._since[device] = run.steps
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            self._since[self._seats[rank]] = int(report.since[rank])
        self._speeds = speeds

    def _attend(self, run: Run) -> None:
        """Standby devices are probed now and then, beside training."""
        truth = run.truth
        for device in due(self._waiting, run.steps):
            slowdown = truth.slowdowns[device.trainer][device.device] * float(self._random(NOISE / 2, ROUNDS).min())
            waiting = self._waiting[device].probed(slowdown) if math.isfinite(slowdown) else self._waiting[device]
            self._waiting[device] = waiting
            if waiting.back:
                self._speeds.pop(device, None)
                self._since[device], self._returns[device] = run.steps, waiting.returns + 1
                del self._waiting[device]

    def _act(self, run: Run) -> None:
        if self._ready and run.now >= self._ready[0]:
            self._options, self._ready = self._ready[1], None
        if self._pending and run.steps >= self._pending[0]:
            run.use(self._pending[1])
            self._pending = None
        if not (self._speeds or self._placed or self._planned):
            return
        rung = decide(self._view(run))
        if isinstance(rung, Rebalance):
            self._rebalance(run, rung.speeds)
        elif isinstance(rung, Plan):
            self._plan(run, rung.speeds)
        elif isinstance(rung, Relayout):
            self._relayout(run, rung)

    def _view(self, run: Run) -> View:
        assert self._layout
        return View(
            action=self._action, step=run.steps, layout=self._layout, seconds=median(self._recent), speeds=self._speeds,
            placed=self._placed, planned=self._planned, since=self._since, options=self._options,
            changes=tuple(self._changes),
        )  # fmt: skip

    def _rebalance(self, run: Run, speeds: Speeds) -> None:
        self._placed = dict(speeds)
        draft = data_only(at_speeds(run.world.costs, speeds), run.draft)
        if draft:
            self._pending = run.steps + LEAD, draft
            run.rebalances += 1

    def _plan(self, run: Run, speeds: Speeds) -> None:
        """Beside training; but where one more slow step would lose more, the step waits for the plan.

        A plan for speeds that have changed meanwhile is made again.
        """
        if self._ready and self._ready[1].speeds == speeds:
            return
        assert self._layout
        took = planning_seconds(run.world.costs.cluster.devices) * run.truth.planning
        options = _options(run.world, self._layout, dict(speeds))
        run.plans += 1
        if took < self._recent[-1] - run.world.healthy.seconds:
            run.wait(took, "planning")
            self._ready = run.now, options
            self._act(run)
        else:
            self._ready = run.now + took, options

    def _relayout(self, run: Run, rung: Relayout) -> None:
        self._changes.append(Change(run.steps, rung.kind, rung.devices))
        self._enter(run, rung.layout, rung.cost)

    def _enter(self, run: Run, layout: Layout, cost: float) -> None:
        costs = at_speeds(run.world.costs, self._speeds)
        draft = data_only(costs, draft_of(costs, layout))
        assert draft
        run.change(draft, cost)
        self._placed, self._planned = dict(self._speeds), dict(self._speeds)
        self._begin(run, draft)
        assert self._layout
        for device in slow(self._speeds) & set(self._layout.standby):
            known = self._waiting.get(device) or Waiting(run.steps, 0.0, 0, self._returns.get(device, 0))
            self._waiting[device] = replace(known, speed=self._speeds[device])
        self._waiting = {d: w for d, w in self._waiting.items() if d in self._layout.standby}

    def lost(self, run: Run) -> bool:
        """Survivors plan and go on from memory; without copies, or after a second loss meanwhile, from the checkpoint."""
        if self._layout is None:
            self._begin(run, run.draft)
        before = run.truth.lost
        run.wait(run.settings.loss, "losses")
        gone = run.truth.lost
        self._speeds = {d: s for d, s in self._speeds.items() if d not in gone} | dict.fromkeys(gone, 0.0)
        self._since |= dict.fromkeys(gone, run.steps)
        if len(gone) == run.world.costs.cluster.devices:
            return False
        assert self._layout
        options = _options(run.world, self._layout, dict(self._speeds))
        run.plans += 1
        run.wait(planning_seconds(run.world.costs.cluster.devices) * run.truth.planning, "planning")
        if not options.layouts:
            return False
        best = min(options.layouts, key=lambda o: o.seconds)
        if not self._copies or gone != before:
            run.redo()
            run.wait(run.settings.restart + load_seconds(run.world), "restart")
        self._changes.append(Change(run.steps, best.kind, frozenset(gone)))
        self._enter(run, best.layout, best.change + self._from_copies(run, best))
        return True

    def _from_copies(self, run: Run, option: Option) -> float:
        """Seconds in which the copies of lost shards reach their new owners: each from one holder."""
        costs = run.world.costs
        shard = 12 * costs.elements(1, costs.model.layers, True, True) / len(self._seats)
        return shard / costs.between


def _options(world: World, layout: Layout, speeds: Speeds) -> Options:
    """Planned once for all runs of a world; each run is charged for it."""
    key = layout, frozenset(speeds.items())
    if key not in world.options:
        world.options[key] = options_for(world.costs, layout, speeds)
    return world.options[key]
