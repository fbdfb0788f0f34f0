"""Coxswain in virtual time: the detector and its probe, the ladder and the layout planner as the coordinator calls them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np

from coxswain.ladder.decide import decide, slow
from coxswain.ladder.options import at_speeds, draft_of, options_for
from coxswain.ladder.speeds import bucket, speed_of
from coxswain.ladder.standby import Waiting, due
from coxswain.ladder.values import Action, Change, Option, Options, Plan, Rebalance, Relayout, ReplaceNode, Speeds, View
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
STEADY = 16  # steps of one truth after which the detector may have settled: no longer has it figures of another
AHEAD = 8  # steps before the truth changes that are observed again: so many make its windows


class Ours:
    """`copies`: optimizer state has a copy on another node, so that a loss costs one step.

    `skips`: steps that can show the detector nothing but noise are not observed.
    """

    def __init__(
        self, seed: int, action: Action = "Migrate", copies: bool = True, name: str = "ours", skips: bool = True
    ) -> None:  # fmt: skip
        self.name, self._action, self._copies, self._skips = name, action, copies, skips
        self._seed = seed
        self._layout: Layout | None = None
        self._detector: Detector | None = None
        self._powers: dict[Device, int] = {}  # of STEP, by slow device
        self._dead: frozenset[Device] = frozenset()
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
        self._steady: tuple[float, int] = -1.0, 0  # since when the truth is as it is, and steps observed since
        self._replaced: dict[int, int] = {}  # how often each node was
        self._spares: list[float] = []  # when each spare node is well

    @property
    def _speeds(self) -> dict[Device, float]:
        slow = {device: speed_of(power) for device, power in sorted(self._powers.items())}
        return slow | dict.fromkeys(sorted(self._dead), 0.0)

    def _first(self, run: Run) -> None:
        self._spares = [0.0] * run.settings.spares
        self._begin(run, run.draft)

    def _begin(self, run: Run, draft: Draft) -> None:
        """A new layout: ranks have new places; what was planned from the old one is void."""
        self._layout = layout_of(draft, run.world.costs.cluster)
        seats = self._layout.ranks()
        nodes, more = run.trace.nodes, self._replaced
        places = [
            Place(
                s.replica,
                s.stage,
                s.tensor,
                s.device.trainer + nodes * more.get(s.device.trainer, 0),
                s.device.device,
                s.device.trainer,
            )
            for s in seats
        ]
        self._detector = self._detector.moved(places) if self._detector else Detector(places)
        self._seats = [s.device for s in seats]
        self._rank_of = {device: rank for rank, device in enumerate(self._seats)}
        self._replicas = np.array([s.replica for s in seats])
        stages = {(s.replica, s.stage): 0.0 for s in seats}
        stages = {stage: self._stage_work(run, draft, *stage) for stage in stages}
        self._work = np.array([stages[s.replica, s.stage] for s in seats])
        self._natural = np.array([self._own(run, d) for d in self._seats])
        self._ready = self._options = self._pending = None
        self._recent, self._steady = [], (-1.0, 0)

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
            self._first(run)
        self._recent = [*self._recent[-4:], measured.seconds]
        self._observe(run, measured)
        self._attend(run)
        if self._action not in ("None", "Warn"):
            self._act(run)

    def _observe(self, run: Run, measured: Measured) -> None:
        assert self._detector
        if self._shows_nothing(run, measured):
            self._detector.passed(1)
            return
        report = self._detector.observe(self._figures(run, measured))
        self._learn(run, self._probed(run, report) if report.probes else report)

    def _shows_nothing(self, run: Run, measured: Measured) -> bool:
        """The truth has been as it is for long, and stays so for longer than the detector's windows; it has settled."""
        truth = run.truth
        since, steps = self._steady
        self._steady = truth.since, steps + 1 if truth.since == since else 0
        if not self._skips or self._steady[1] < STEADY or truth.long > 1 or truth.pauses or len(measured.parts) > 1:
            return False
        assert self._detector
        left = run.timeline.next_change(run.now) - run.now
        return left > AHEAD * measured.seconds and self._detector.settled

    def _figures(self, run: Run, measured: Measured) -> Step:
        true = np.sum([part * self._true(truth) for part, truth in measured.parts], axis=0)
        work = self._work * np.array(run.draft.counts)[self._replicas]
        compute = work * true * measured.long[self._replicas] * self._random(run, 0, NOISE, len(work))
        for rank, seconds in measured.pauses.items():
            compute[rank] += seconds
        return Step(run.steps, compute, work, SHORT + (LONG - SHORT) * 2 * (measured.long[self._replicas] - 1))

    def _true(self, truth: Truth) -> Floats:
        found = self._natural * truth.fleet
        for (node, device), x in truth.key:
            rank = self._rank_of.get(Device(node, device))
            if rank is not None and math.isfinite(x):
                found[rank] *= x
        return found

    def _random(self, run: Run, purpose: int, sigma: float, shape: int | tuple[int, int]) -> Floats:
        """Noise of one step, which is the same whatever of other steps was observed."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, 4 * run.steps + purpose]))
        found: Floats = np.exp(generator.normal(0, sigma, shape))
        return found

    def _probed(self, run: Run, report: Report) -> Report:
        """Ranks probe before the next step, which takes as long as the slowest one does; the answers count at once."""
        assert self._detector
        true, ranks = self._true(run.truth), list(report.probes)
        run.wait(ROUNDS * PROBE * float(true[ranks].max()), "probes")
        rounds = self._random(run, 1, NOISE / 2, (ROUNDS, len(true))).min(axis=0)
        none = np.full(len(true), np.nan)
        answers = {rank: float(PROBE * true[rank] * rounds[rank]) for rank in ranks}
        return self._detector.observe(Step(run.steps, none, none, probes=answers))

    def _learn(self, run: Run, report: Report) -> None:
        """What the detector says of the ranks, what probes say of standby devices, and which devices are gone."""
        before, self._dead = self._speeds, run.truth.lost
        powers = {d: p for d, p in self._powers.items() if d not in self._rank_of and d not in self._dead}
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            device = self._seats[rank]
            powers[device] = bucket(float(report.slowdowns[rank]), self._powers.get(device, 0))
        self._powers = powers
        speeds = self._speeds
        for device in {*speeds, *before}:
            if speeds.get(device, 1.0) != before.get(device, 1.0):
                self._since[device] = run.steps
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            self._since[self._seats[rank]] = int(report.since[rank])

    def _attend(self, run: Run) -> None:
        """Standby devices are probed now and then, beside training."""
        truth = run.truth
        for device in due(self._waiting, run.steps):
            noise = self._random(run, 2, NOISE / 2, (ROUNDS, run.trace.nodes * run.trace.devices)).min(axis=0)
            slowdown = truth.of(device) * float(noise[device.trainer * run.trace.devices + device.device])
            waiting = self._waiting[device].probed(slowdown) if math.isfinite(slowdown) else self._waiting[device]
            self._waiting[device] = waiting
            if waiting.back:
                self._powers.pop(device, None)
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
        if isinstance(rung, Rebalance):  # which placements make by themselves
            self._rebalance(run, rung.speeds)
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
            action=self._action, step=run.steps + 1, layout=self._layout, seconds=median(self._recent), speeds=self._speeds,
            placed=self._placed, planned=self._planned, since=self._since, options=self._options,
            nodes={d: str(d.trainer) for d in self._powers}, changes=tuple(self._changes),
            replace=run.settings.replace if spare else None,
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
        self._waiting = {d: w for d, w in self._waiting.items() if d.trainer != node}
        self._since |= dict.fromkeys(rung.devices, run.steps + 1)
        planned = self._planned
        self._enter(run, self._layout, run.settings.replace, "replacement")
        self._planned = planned  # the layout is still the one for the old node: a better one may follow

    def _enter(self, run: Run, layout: Layout, cost: float, cause: str = "migration") -> None:
        costs = at_speeds(run.world.costs, self._speeds)
        draft = data_only(costs, draft_of(costs, layout))
        assert draft
        run.change(draft, cost, cause)
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
        options = _options(run.world, self._layout, dict(self._speeds))
        run.plans += 1
        run.wait(planning_seconds(run.world.costs.cluster.devices) * run.truth.planning, "planning")
        if not options.layouts:
            return False
        best = min(options.layouts, key=lambda o: o.seconds)
        if not self._copies or gone != before:
            run.redo()
            run.wait(run.settings.restart + load_seconds(run.world), "restart")
        self._changes.append(Change(run.steps + 1, best.kind, frozenset(gone)))
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
