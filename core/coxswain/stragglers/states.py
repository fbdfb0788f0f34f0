"""Normal, suspected, confirmed: by k of n slow windows, then by a probe; back after a calm that grows with each return."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coxswain.stragglers.medians import push
from coxswain.stragglers.values import Floats, Ints, Mask, State, Thresholds

UNSEEN = 16  # steps without figures until a straggler is probed


class States:
    """One machine a rank. A rank without figures in a step stays as it is: a straggler without them is well by its probes."""

    def __init__(self, ranks: int, thresholds: Thresholds) -> None:
        self._t = thresholds
        self.states: Ints = np.zeros(ranks, dtype=np.int64)
        self.slowdowns: Floats = np.ones(ranks)  # of confirmed ranks
        self.since: Ints = np.zeros(ranks, dtype=np.int64)
        self._slow = np.zeros((ranks, thresholds.n))  # 1 for each slow one of the last windows
        self._begin: Ints = np.zeros(ranks, dtype=np.int64)  # step of the first slow one
        self._calm: Ints = np.zeros(ranks, dtype=np.int64)  # calm steps so far
        self._rise: Ints = np.zeros(ranks, dtype=np.int64)  # steps slower than reported so far
        self._calm_needed: Ints = np.full(ranks, thresholds.calm)
        self._resting: Ints = np.zeros(ranks, dtype=np.int64)  # steps without suspicion to come
        self._rest_needed: Ints = np.full(ranks, thresholds.rest)
        self._cleared: Floats = np.ones(ranks)  # the estimate that a probe did not confirm
        self._quiet: Ints = np.zeros(ranks, dtype=np.int64)  # steps since it was confirmed
        self._unseen: Ints = np.zeros(ranks, dtype=np.int64)  # steps of a straggler without figures

    def columns(self) -> Iterator[np.ndarray]:
        """All that is kept, by rank."""
        yield from (self.states, self.slowdowns, self.since, self._slow, self._begin, self._calm)
        yield from (self._rise, self._calm_needed, self._resting, self._rest_needed, self._cleared, self._quiet)
        yield self._unseen

    def rewind(self, step: int) -> None:
        """Steps from this one on are done again: what began later begins with it."""
        self.since, self._begin = np.minimum(self.since, step), np.minimum(self._begin, step)

    @property
    def confirmed(self) -> Mask:
        return np.equal(self.states, State.CONFIRMED)

    @property
    def suspected(self) -> Mask:
        return np.equal(self.states, State.SUSPECTED)

    @property
    def doubtful(self) -> Mask:
        """Ranks of which a probe must say how they are: suspects, and stragglers without figures for long."""
        return self.suspected | (self._unseen >= UNSEEN)

    @property
    def healthy(self) -> Mask:
        """Normal, and no slow window of late."""
        return np.equal(self.states, State.NORMAL) & ~self._slow.any(axis=1)

    @property
    def settled(self) -> bool:
        """No rank is on its way from one state or slowdown to another."""
        return bool((self.healthy | self.confirmed).all() and not self._calm.any() and not self._rise.any())

    def passed(self, steps: int) -> None:
        """So many steps in which no rank changed."""
        self._resting = np.maximum(self._resting - steps, 0)
        self._quiet = np.where(self.confirmed, 0, self._quiet + steps)
        self._calm_needed[self._quiet >= self._t.forget] = self._t.calm

    def advance(
        self, step: int, present: Mask, window: Floats, estimate: Floats, enter: Floats, urgent: Mask
    ) -> None:  # fmt: skip
        """One step's windows and estimates by rank; `enter`: the window that counts as slow; `urgent`: that suffices alone."""
        self._settle(step, present, window, estimate)
        self._unseen = np.where(self.confirmed & ~present, self._unseen + 1, 0)
        over = present & (window >= enter)
        self._begin = np.where(over & ~self._slow.any(axis=1), step, self._begin)
        push(self._slow, present, over.astype(float))
        counts = np.where(present & urgent, self._t.k, self._slow.sum(axis=1))
        self._resting = np.maximum(self._resting - present, 0)
        awake = (self._resting == 0) | (estimate > self._cleared * self._t.enter)
        normal = self.states == State.NORMAL
        self._change(State.SUSPECTED, normal & (counts >= self._t.k) & awake, self._begin)
        self._change(State.NORMAL, self.suspected & (counts == 0), np.full_like(self._begin, step))
        self._quiet = np.where(self.confirmed, 0, self._quiet + present)
        self._calm_needed[self._quiet >= self._t.forget] = self._t.calm

    def _settle(self, step: int, present: Mask, window: Floats, estimate: Floats) -> None:
        """Raises a straggler's slowdown soon; lowers it, to normal if it is, after a calm that doubles each time."""
        mine, leave = present & self.confirmed, self._t.leave
        high = mine & (window > self.slowdowns * leave)
        self._rise = np.where(high, self._rise + 1, np.where(present, 0, self._rise))
        rise = mine & (self._rise >= self._t.estimate)
        low = mine & (window <= np.maximum(leave, self.slowdowns / leave))
        self._calm = np.where(low, self._calm + 1, np.where(present, 0, self._calm))
        lower = mine & (self._calm >= self._calm_needed)
        self._calm_needed = np.where(lower, np.minimum(2 * self._calm_needed, self._t.most_calm), self._calm_needed)
        self._calm[lower] = 0
        changed = rise | lower
        self.slowdowns[changed] = np.round(estimate[changed], 2)
        left = lower & (estimate <= leave)
        self.slowdowns[left] = 1.0
        self._change(State.NORMAL, left, np.full_like(self._begin, step))

    def probed(self, step: int, answers: Floats) -> Mask:
        """What probes say of stragglers without figures: the steps since the last probe were so. Returns those that are well.

        Two well ones in a row at least, and more with each return.
        """
        mine = (self._unseen >= UNSEEN) & ~np.isnan(answers)
        well = mine & (answers <= self._t.leave)
        self._calm = np.where(well, self._calm + UNSEEN, np.where(mine, 0, self._calm))
        left = well & (self._calm >= np.maximum(self._calm_needed, 2 * UNSEEN))
        self._calm_needed = np.where(left, np.minimum(2 * self._calm_needed, self._t.most_calm), self._calm_needed)
        self._calm[left], self._slow[left], self.slowdowns[left] = 0, 0, 1.0
        self._unseen = np.where(mine, 0, self._unseen)
        self._change(State.NORMAL, left, np.full(len(left), step))
        return left

    def judge(self, step: int, probed: Floats, estimate: Floats, least: Floats) -> None:
        """What the probe of suspects says, NaN: no answer yet; `least`: the slowdown that confirms one whose steps are slow."""
        estimate = np.where(probed > estimate * self._t.enter, probed, estimate)  # its first steps were slow in part
        agreed = self.suspected & (probed >= least) & (np.round(estimate, 2) >= self._t.enter)
        self.slowdowns[agreed] = np.round(estimate[agreed], 2)
        self._calm[agreed], self._rest_needed[agreed] = 0, self._t.rest
        self._change(State.CONFIRMED, agreed, self._begin)
        refuted = self.suspected & (probed < least)
        cleared = np.where(self._resting > 0, np.maximum(self._cleared, estimate), estimate)
        self._cleared = np.where(refuted, cleared, self._cleared)
        self._resting[refuted] = self._rest_needed[refuted]
        self._rest_needed[refuted] = np.minimum(2 * self._rest_needed[refuted], self._t.most_rest)
        self._slow[refuted] = 0
        self._change(State.NORMAL, refuted, np.full_like(self._begin, step))

    def _change(self, state: State, which: Mask, since: Ints) -> None:
        self.states[which], self.since[which] = state, since[which]
