"""One policy through one trace in virtual time.

Time goes on step by step. A step takes what the layout takes under the true slowdowns, by the same event simulation that
layouts are planned with; the policy sees only what it measures, and its changes happen between steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coxswain.ladder.values import REPLACE_SECONDS
from coxswain.plan.layouts.settle import Draft
from coxswain.simulate.traces import Trace
from coxswain.simulate.truth import Timeline, Truth
from coxswain.simulate.world import World, load_seconds, replicas_of
from coxswain.stragglers.values import Floats

CHECKPOINT = 600.0  # seconds between checkpoints, which are written beside training
RESTART = 120.0  # seconds from the end of all processes until training goes on; published systems take hundreds
LOSS = 10.0  # seconds until a lost device is known and the world has ended
PAUSE_RATE = 1 / 300  # of a rank and step, during an event `pauses`


@dataclass(frozen=True)
class Settings:
    """What a job does about losses, in seconds where not said."""

    checkpoint: float = CHECKPOINT
    restart: float = RESTART
    loss: float = LOSS
    replace: float = REPLACE_SECONDS
    spares: int = 1  # nodes beside the cluster, well, that ReplaceNode may take


@dataclass(frozen=True)
class Measured:
    """One step: seconds, and the factor of each replica beyond the true slowdowns of devices (long sequences)."""

    seconds: float
    base: float  # without drift, pauses and long sequences
    long: Floats
    pauses: dict[int, float]  # by rank
    parts: tuple[tuple[float, Truth], ...]  # of its work, under what was true meanwhile


class Policy(Protocol):
    name: str

    def stepped(self, run: Run, measured: Measured) -> None:
        """After each step: may take time (`run.wait`) and change the layout (`run.change`)."""

    def lost(self, run: Run) -> bool:
        """Devices of the layout are gone: takes the time of going on without them. False: no layout holds the model."""


@dataclass
class Outcome:
    """What a run came to. `seconds_lost`: by cause, of all devices together; with the steps, as they would take on the whole
    cluster, well, they are `seconds`. `part`: of the step that the end cuts off."""

    name: str
    seconds: float
    healthy: float  # seconds of a step on the whole cluster, with every device well
    ends: list[float]  # of the steps that count
    seconds_lost: dict[str, float]
    plans: int
    changes: int
    rebalances: int
    part: float

    @property
    def goodput(self) -> float:
        """The part of time that steps would have taken on the whole cluster, well."""
        return (len(self.ends) + self.part) * self.healthy / self.seconds

    def curve(self, points: int) -> list[float]:
        """Goodput of each of so many equal spans."""
        width = self.seconds / points
        counts = np.bincount([min(points - 1, int(t / width)) for t in self.ends], minlength=points)
        return [round(float(n) * self.healthy / width, 4) for n in counts]


@dataclass
class Run:
    """The clock of one policy. `now` in seconds; `steps` counts those done, redone ones again."""

    world: World
    trace: Trace
    policy: Policy
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.trace)
        self.random = np.random.default_rng(self.trace.seed)
        self.now, self.saved_at, self.steps, self.saved = 0.0, 0.0, 0, 0
        self.ends: list[float] = []
        self.lost: dict[str, float] = defaultdict(float)
        self.plans = self.changes = self.rebalances = 0
        self.part = 0.0
        self.stopped = False  # for too few devices: no memory counts as having kept the state
        self.use(self.world.healthy)

    @property
    def truth(self) -> Truth:
        return self.timeline.at(self.now)

    def use(self, draft: Draft) -> None:
        """This layout and these micro-batches from now on."""
        self.draft = draft
        self.devices = frozenset(replicas_of(draft))
        self.ranks = [r for r, c in enumerate(draft.chains) for g in c.groups for _ in g.devices]

    def change(self, draft: Draft, seconds: float, cause: str = "migration") -> None:
        """Training stands still for so long, then goes on with this layout."""
        self.timeline.changed(self.now)
        self.wait(seconds, cause)
        self.use(draft)
        self.changes += 1

    def wait(self, seconds: float, cause: str) -> None:
        self.lost[cause] += min(seconds, max(0.0, self.trace.seconds - self.now))
        self.now += seconds

    def redo(self) -> None:
        """The state goes back to the last checkpoint; the steps since then are done again."""
        again = len(self.ends) - self.saved
        self.lost["redone"] += again * self.world.healthy.seconds
        del self.ends[self.saved :]

    def go(self) -> Outcome:
        while self.now < self.trace.seconds:
            self._step()
        del self.ends[bisect_right(self.ends, self.trace.seconds) :]
        lost = {cause: round(seconds, 3) for cause, seconds in self.lost.items() if abs(seconds) > 1e-6}
        healthy, counts = self.world.healthy.seconds, (self.plans, self.changes, self.rebalances)
        return Outcome(self.policy.name, self.trace.seconds, healthy, self.ends, lost, *counts, self.part)

    def _step(self) -> None:
        truth = self.truth
        if truth.lost and self.devices & truth.lost:
            self._recover()
            return
        if self.stopped:
            self._restart()
            return
        measured = self._measured(truth)
        gone = self.timeline.next_loss(self.now, self.now + measured.seconds, self.devices)
        if gone is not None:
            self.wait(gone - self.now, "redone")
            return
        self.count(measured)
        self.policy.stepped(self, measured)

    def _recover(self) -> None:
        self.stopped = not self.policy.lost(self)
        if self.stopped:  # what was to change next may have done so while the policy waited
            until = min(self.timeline.next_change(self.now), self.trace.seconds + 1)
            self.wait(max(0.0, until - self.now), "too few devices")

    def _restart(self) -> None:
        """Enough devices are there again, and none of them counts as holding the state."""
        self.stopped = False
        self.redo()
        self.wait(self.settings.restart + load_seconds(self.world), "restart")

    def count(self, measured: Measured) -> None:
        """A step is done: the clock, the ends, what was lost, and the checkpoint that is due behind it."""
        left = self.trace.seconds - self.now
        self.part = left / measured.seconds if left < measured.seconds else 0.0
        counted = self.part or 1.0
        self.now += measured.seconds
        self.steps += 1
        self.ends.append(self.now)
        self.lost["slow or missing devices"] += counted * (measured.base - self.world.healthy.seconds)
        self.lost["drift, pauses, long sequences"] += counted * (measured.seconds - measured.base)
        if self.now - self.saved_at >= self.settings.checkpoint:
            self.saved, self.saved_at = len(self.ends), self.now

    def _measured(self, truth: Truth) -> Measured:
        """The next step, with what noise the truth at its beginning has."""
        replicas = len(self.draft.chains)
        long, late, pauses = np.ones(replicas), np.zeros(replicas), dict[int, float]()
        if truth.long > 1:
            long[self.random.integers(replicas)] = self.random.uniform(1.0, truth.long)
        if truth.pauses:
            hit = np.flatnonzero(self.random.random(len(self.ranks)) < PAUSE_RATE)
            pauses = {int(r): float(self.random.uniform(0.1, truth.pauses)) for r in hit}
            np.maximum.at(late, [self.ranks[r] for r in pauses], list(pauses.values()))
        base, seconds, parts = 0.0, 0.0, []
        for part, true in self._parts(truth, long):
            ends = self.world.ends(self.draft, true)
            base += part * float(ends.max())
            seconds += part * float((ends * long).max()) * true.fleet
            parts.append((part, true))
        return Measured(seconds + float(late.max()), base, long, pauses, tuple(parts))

    def _parts(self, truth: Truth, long: Floats) -> Iterator[tuple[float, Truth]]:
        """The parts of a step's work under each truth: a device that recovers in the middle ends its part faster."""
        left, now = 1.0, self.now
        while left > 1e-9:
            seconds = float((self.world.ends(self.draft, truth) * long).max()) * truth.fleet
            until = self.timeline.next_edge(now)
            part = left if math.isinf(seconds) else min(left, (until - now) / seconds)
            yield part, truth
            left -= part
            now = until
            truth = self.timeline.peek(now) if left > 1e-9 else truth
