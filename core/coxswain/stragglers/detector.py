"""Finds stragglers step by step. Deterministic: equal steps give equal reports. Memory does not grow with steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from coxswain.stragglers.baseline import Baseline
from coxswain.stragglers.causes import LastStage, Waits, stragglers_causes
from coxswain.stragglers.lengths import LengthFit
from coxswain.stragglers.medians import Peers, push, row_medians
from coxswain.stragglers.probes import Probes
from coxswain.stragglers.scores import Scores
from coxswain.stragglers.states import States
from coxswain.stragglers.values import Cause, Floats, Ints, Mask, Place, Report, State, Step, Thresholds


class Detector:
    """For the ranks of one world, `places` in rank order. `moved` continues with those of the next."""

    def __init__(self, places: Sequence[Place], thresholds: Thresholds | None = None) -> None:
        self.places = tuple(places)
        self._t = t = thresholds or Thresholds()
        ranks = len(self.places)
        self._nodes: Ints = np.unique([p.node for p in places], return_inverse=True)[1]
        self._on_node = Peers([p.node for p in places])
        self._baseline, self._states = Baseline(ranks, t.learn), States(ranks, t)
        roles, everyone = Peers([_role(p) for p in places]), Peers([0] * ranks)
        self._scores = Scores(roles, everyone, self._baseline, t)
        self._lengths, self._probes = LengthFit(ranks), Probes([p.kind for p in places], t)
        self._last, self._waits = LastStage(places), Waits(ranks, t.learn, t.n, t.waits)
        self._seconds = np.zeros(ranks)  # of the last step
        self._aside: dict[tuple[int, int], float] = {}  # first probes of devices on standby
        self._recent, self._rates = np.full((ranks, max(t.n, t.window)), np.nan), np.full((ranks, t.n), np.nan)

    def observe(self, step: Step) -> Report:
        rates = _rates(step)
        present = ~np.isnan(rates)
        factors = self._lengths.factors(rates, step.longest)
        push(self._rates, present, rates)
        scores = self._scores.observe(rates / factors, self._states.confirmed)
        seen = ~np.isnan(scores)
        push(self._recent, seen, scores)
        window = row_medians(self._recent[:, -self._t.window :])
        last = self._recent[:, -1]
        known = ~np.isnan(self._baseline.values)
        enter = np.where(self._baseline.settled, self._t.enter, self._t.unknown)
        alone = ~self._states.confirmed & (
            (last >= self._t.alarm) | ((last >= enter) & self._dear(step, present, last))
        )
        window = np.where(alone, last, window)
        estimate = row_medians(self._recent[:, -self._t.estimate :])
        urgent = alone | (window >= self._t.urgent)
        estimate = np.where(urgent, np.maximum(window, estimate), estimate)
        self._states.advance(step.number, seen, window, estimate, enter, urgent)
        normal = self._states.states == State.NORMAL
        answers = self._probes.answers(step.probes, normal, known, self._states.confirmed)
        self._recent[self._states.probed(step.number, answers)] = np.nan  # what it was before it was well
        self._states.judge(step.number, answers, estimate, self._least(estimate, urgent))
        return self._report(step, present, estimate, factors)

    def _least(self, estimate: Floats, urgent: Mask) -> Floats:
        """The slowdown of a probe that confirms. None does where steps are fast and slow by turns: others use the same cores."""
        t = self._t
        least = np.where(np.isnan(self._probes.first), t.enter, t.probe)
        well = np.count_nonzero(self._recent[:, -t.estimate :] <= t.leave, axis=1)
        return np.where((well > 1) & ~urgent, np.inf, np.fmax(least, 1 + t.part * (estimate - 1)))

    def _dear(self, step: Step, present: Mask, slowdowns: Floats) -> Mask:
        """Ranks whose last step alone lost more than a probe of them takes, and had no sequence that is long beside others'."""
        self._seconds[present] = step.compute[present]
        if step.longest is not None and present.any():
            usual = row_medians(step.longest[None, present])[0] * self._t.usual
            self._seconds[present & (step.longest > usual)] = 0.0
        lost: Floats = self._seconds * (1 - 1 / np.fmax(slowdowns, 1.0))
        return lost >= self._t.dear

    @property
    def settled(self) -> bool:
        """More steps like the last ones, but for noise, change nothing: no rank is suspected, or about to be another."""
        healthy, known = self._states.healthy, ~np.isnan(self._baseline.values)
        wanted = self._probes.requests(self._states.doubtful, healthy, known)
        return self._states.settled and bool(self._baseline.settled.all()) and not wanted

    def passed(self, steps: int) -> None:
        """So many steps like the last ones that were not observed, while `settled`."""
        self._states.passed(steps)

    def _report(self, step: Step, present: Mask, estimate: Floats, factors: Floats) -> Report:
        states, t = self._states, self._t
        slowdowns = np.where(states.suspected, np.maximum(estimate, 1.0), states.slowdowns)
        healthy, known = states.healthy, ~np.isnan(self._baseline.values)
        last = self._last.factor(np.where(healthy, row_medians(self._rates), np.nan))
        causes = self._waits.causes(step, not healthy.all(), len(self.places))
        causes = np.where((causes == Cause.NONE) & self._last.ranks & (last >= t.enter), Cause.LAST_STAGE, causes)
        causes = np.where((causes == Cause.NONE) & (factors >= t.enter), Cause.LONG_SEQUENCES, causes)
        marked = states.states != State.NORMAL
        blame = stragglers_causes(marked, present, slowdowns, self._nodes, self._on_node)
        probes = self._probes.requests(states.doubtful, healthy, known)
        return Report(
            step.number,
            states.states.copy(),
            slowdowns,
            states.since.copy(),
            np.where(marked, blame, causes),
            probes,
            last,
        )

    @property
    def slowdowns(self) -> Floats:
        """Of confirmed ranks, by rank; 1 of all others."""
        return np.where(self._states.confirmed, self._states.slowdowns, 1.0)

    def slowdown_aside(self, device: tuple[int, int], seconds: float) -> float:
        """Of the probe of a device on standby, beside first ones: its own and those of ranks. NaN: none is known."""
        first, seconds = self._aside.get(device, np.nan), seconds if 0 < seconds < float("inf") else np.nan
        return self._probes.slowdown_aside(seconds, first)

    def moved(
        self, places: Sequence[Place], first_step: int | None = None, standby: Collection[tuple[int, int]] = ()
    ) -> Detector:
        """The detector of the next world: devices keep state and first probe, and history where their role is the same.

        A straggler keeps its history in any role: its new role's would begin with slow steps. `first_step`: of that world;
        None: it repeats no step. `standby`: its devices that are no rank's, by trainer and number, keep their first probes.
        """
        found = Detector(places, self._t)
        ranks = {(p.trainer, p.device): rank for rank, p in enumerate(self.places)}
        pairs = [(n, ranks[p.trainer, p.device]) for n, p in enumerate(places) if (p.trainer, p.device) in ranks]
        mine, theirs = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        for new, old in zip(found._states.columns(), self._states.columns(), strict=True):
            new[mine] = old[theirs]
        if first_step is not None:
            found._states.rewind(first_step)
        found._keep_firsts(self.firsts(), standby)
        same = np.array([_role(places[m]) == _role(self.places[o]) for m, o in pairs], dtype=bool)
        kept = same | (self._states.states[theirs] != State.NORMAL)
        found._baseline.take(self._baseline, mine[kept], theirs[kept])
        return found

    def firsts(self) -> dict[tuple[int, int], float]:
        """Seconds of first probes, by trainer and number of the device; NaN: it has had none. Also of devices on standby."""
        named = zip(self.places, self._probes.first, strict=True)
        return self._aside | {(p.trainer, p.device): float(first) for p, first in named}

    def _keep_firsts(self, firsts: Mapping[tuple[int, int], float], standby: Collection[tuple[int, int]]) -> None:
        self._probes.first[:] = [firsts.get((p.trainer, p.device), np.nan) for p in self.places]
        self._aside = {device: firsts[device] for device in standby if device in firsts}


def _role(place: Place) -> tuple[int, int, str]:
    return place.stage, place.tensor, place.kind


def _rates(step: Step) -> Floats:
    """Seconds for a second of planned work; NaN: no figures, or no work in this step."""
    known = (step.compute > 0) & (step.work > 0) & np.isfinite(step.compute) & np.isfinite(step.work)
    return np.where(known, step.compute / np.where(known, step.work, 1.0), np.nan)
