"""Watches the ranks of each world for stragglers: what to probe, what to plan with, what to report.

State is kept across worlds. A new coordinator begins with none: it finds a straggler again beside its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from coxswain.config import StragglerConfig
from coxswain.ladder.lead import heeds_suspects
from coxswain.layout import Device
from coxswain.names import EventReason
from coxswain.planlog import Generation
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.values import Finding, Report, State, Thresholds
from coxswain.wire import StepPlan, StepReport, StragglerReport, World
from coxswain_coordinator.stragglers.figures import Numbers, places_of, step_of
from coxswain_coordinator.stragglers.speeds import replica_speeds
from coxswain_coordinator.stragglers.words import Straggler, detected, recovered

REPORTED = 5
"""Stragglers that a report names."""

PLANS_AROUND = ("Rebalance", "Migrate", "ReplaceNode")
"""Actions under which speeds reach placements."""

_ANSWER_STEPS = 4  # from a request for probes to the next one: an answer needs two or three

RecordEvent = Callable[[EventReason, str, bool], None]
"""Reason, message, whether it is a warning."""


def thresholds_of(config: StragglerConfig) -> Thresholds:
    """A straggler is again normal at half of what makes one; the probe must find three quarters of it.

    No window or step suffices alone that the job does not count as slow.
    """
    part, default = config.threshold_percent / 100, Thresholds()
    enter = 1 + part
    return Thresholds(
        enter=enter, leave=1 + part / 2, probe=1 + 0.75 * part, unknown=max(default.unknown, enter),
        urgent=max(default.urgent, enter), alarm=max(default.alarm, 2 * enter), window=config.window_steps,
    )  # fmt: skip


class Gauge(Protocol):
    def labels(self, *names: object) -> Gauge: ...
    def set(self, value: float) -> None: ...
    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """The world that is watched."""

    record: Generation
    world: World
    nodes: tuple[str, ...]  # by trainer
    shares: Mapping[int, float]
    detector: Detector


class StragglerWatch:
    """`speeds` of the replicas are for the next placements; `probes` are the ranks that the next directive asks."""

    def __init__(
        self, config: StragglerConfig, clock: Callable[[], float], record_event: RecordEvent, gauge: Gauge,
        accelerators: bool = False,
    ) -> None:  # fmt: skip
        self._accelerators = accelerators
        self._config, self._clock, self._record_event, self._gauge = config, clock, record_event, gauge
        self._pods = Numbers()
        self._ranks: Ranks | None = None
        self._found: dict[tuple[int, int], Straggler] = {}  # by pod and device
        self.times: dict[int, float] = {}  # when late steps were closed
        self._asked = 0  # the step whose close asked for probes last
        self.speeds: tuple[float, ...] = ()
        self.probes: frozenset[int] = frozenset()

    @property
    def watches(self) -> bool:
        return self._config.action != "None"

    @property
    def plans_around(self) -> bool:
        """Whether a speed must soon reach a placement."""
        return self._config.action in PLANS_AROUND

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Confirmed ones, the slowest first."""
        return tuple(sorted(self._found.values(), key=lambda s: (-s.slowdown, s.trainer, s.device)))

    @property
    def reports(self) -> tuple[StragglerReport, ...]:
        return tuple(straggler.report for straggler in self.stragglers[:REPORTED])

    def enter(self, record: Generation, world: World, nodes: Sequence[str], shares: Mapping[int, float]) -> None:
        """A new world. Devices that were in the one before keep their state, whatever their seats are."""
        if not self.watches:
            return
        before, speeds, known = self._ranks, self.speeds, self._found
        self._ranks, self.speeds, self.probes, self._found = None, (), frozenset(), {}  # all that an error leaves
        self._measure()
        places = places_of(record, nodes, self._pods)
        detector = (
            before.detector.moved(places, record.first_step, [self._key(record, d) for d in record.layout.standby])
            if before
            else Detector(places, thresholds_of(self._config))
        )
        self._ranks, self._asked, self.speeds = Ranks(record, world, tuple(nodes), shares, detector), 0, speeds
        self._take(detector.slowdowns)
        replicas = {(place.trainer, place.device): place.replica for place in places}
        self._found = {
            device: found.moved(replicas[device], self._speed(replicas[device]), record.first_step)
            for device, found in known.items()
            if device in replicas
        }
        self._measure()

    def _key(self, record: Generation, device: Device) -> tuple[int, int]:
        """By pod and device, as the places of ranks."""
        return self._pods[record.trainers[device.trainer]], device.device

    def slowdown_aside(self, device: Device, seconds: float) -> float:
        """Of the probe of a device on standby in this world; NaN: nothing is known to compare it with."""
        ranks = self._ranks
        return ranks.detector.slowdown_aside(self._key(ranks.record, device), seconds) if ranks else float("nan")

    def observe(self, plan: StepPlan, reports: Mapping[int, StepReport]) -> None:
        """A closed step."""
        ranks = self._ranks
        if ranks is None:
            return
        self.times = {step: t for step, t in self.times.items() if step > plan.step - 64} | {plan.step: self._clock()}
        step = step_of(plan, reports, ranks.world.seats, ranks.shares)
        report = ranks.detector.observe(step)
        self._ask(report, bool(step.probes))
        self._take(report.heeded(heeds_suspects(max(r.seconds for r in reports.values()), self._accelerators)))
        self._announce(ranks, report)

    def planned(self, plans: Sequence[StepPlan]) -> None:
        """Plans that are committed: notes the first one that each straggler's speed has reached."""
        for plan in plans:
            for device, found in self._found.items():
                if found.planned_from is None and plan.speeds and plan.speeds[found.replica] == found.speed:
                    self._found[device] = replace(found, planned_from=plan.step)

    def _ask(self, report: Report, answered: bool) -> None:
        """Asks again where no answer has come: a worker without its coordinator gets no directive."""
        if answered:
            self._asked = 0
        if report.probes and (not self._asked or report.step >= self._asked + _ANSWER_STEPS):
            self.probes, self._asked = frozenset(report.probes), report.step

    def take_probes(self) -> frozenset[int]:
        """The ranks that run the probe before a step: once."""
        probes, self.probes = self.probes, frozenset()
        return probes

    def _take(self, slowdowns: np.ndarray) -> None:
        if self.plans_around and self._ranks is not None:
            seats = self._ranks.world.seats
            replicas = 1 + max(seat.replica for seat in seats)
            before = self.speeds if len(self.speeds) == replicas else ()
            self.speeds = ()  # those of another world, or of an error, fit no placement
            shares = np.array([self._ranks.shares.get(seat.rank, 1.0) for seat in seats])
            self.speeds = replica_speeds(slowdowns * shares, seats, before)

    def _announce(self, ranks: Ranks, report: Report) -> None:
        """Events of devices that have become stragglers, or are none any more."""
        now = {}
        for rank in np.flatnonzero(report.states == State.CONFIRMED):
            place = ranks.detector.places[int(rank)]
            now[place.trainer, place.device] = self._straggler(ranks, report.finding(int(rank)))
        for device, found in now.items():
            if device not in self._found:
                self._record_event("StragglerDetected", detected(found, report.step), True)
        for device in self._found.keys() - now.keys():
            self._record_event("StragglerRecovered", recovered(self._found[device], report.step), False)
        changed = {d: s.slowdown for d, s in now.items()} != {d: s.slowdown for d, s in self._found.items()}
        self._found = {d: s.kept(self._found.get(d)) for d, s in now.items()}
        if changed:
            self._measure()

    def _straggler(self, ranks: Ranks, finding: Finding) -> Straggler:
        seat = ranks.world.seats[finding.rank]
        trainer = seat.device.trainer
        return Straggler(
            trainer=ranks.world.trainers[trainer], device=seat.device.device, node=ranks.nodes[trainer],
            slowdown=finding.slowdown, since_step=finding.since,
            since=self.times.get(finding.since, min(self.times.values())), cause=finding.cause,
            replica=seat.replica, speed=self._speed(seat.replica),
        )  # fmt: skip

    def _speed(self, replica: int) -> float | None:
        """What it is planned with; None: plans go by no speeds."""
        if not self.plans_around:
            return None
        return self.speeds[replica] if self.speeds else 1.0

    def _measure(self) -> None:
        """One series for each straggler, none for other devices."""
        self._gauge.clear()
        for found in self.stragglers:
            self._gauge.labels(found.trainer, str(found.device), found.node).set(found.slowdown)
