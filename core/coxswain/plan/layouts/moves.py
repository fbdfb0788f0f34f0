"""Changes of a layout under search: groups move between replicas, nodes are cut otherwise, and what is better stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from coxswain.plan.layouts.chains import Chain
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.filling import fill_counts, relaxed_level
from coxswain.plan.layouts.groups import PENALTIES, Cutter
from coxswain.plan.layouts.ordering import Chains, sort
from coxswain.plan.layouts.settle import Settler

T = TypeVar("T")
Changed = dict[int, list[Group]]  # groups of some replicas after a change


@dataclass(slots=True)
class State:
    """Chains under search. `score`: seconds of a step, mostly with whole micro-batches, a little with cut ones."""

    chains: list[Chain]
    batches: int
    settler: Settler | None = None  # simulates chains
    score: float = 0.0
    counts: list[int] = field(default_factory=list)

    def judge(self) -> bool:
        """Returns whether there is a micro-batch for each chain."""
        pace, start = [c.pace for c in self.chains], [c.start for c in self.chains]
        if self.settler and (draft := self.settler.deal(self.chains)):
            self.counts, step = list(draft.counts), draft.seconds
        else:
            self.counts = fill_counts(self.batches, pace, start) or []
            ends = (m * p + s for m, p, s in zip(self.counts, pace, start, strict=False))
            step = max(ends, default=0.0)
        self.score = step + (0.02 if self.settler else 0.2) * relaxed_level(self.batches, pace, start)
        return bool(self.counts)


def improve(state: State, chains: Chains, tries: int) -> State:
    """The best state after so many tries; each goes on from the best so far."""
    moves = Moves(chains.costs)
    for _ in range(tries):
        changed = moves.draw(state)
        new = {i: chains.of(groups, len(state.chains)) for i, groups in changed.items()}
        if not new or None in new.values():
            continue
        mixed = [new.get(i) or c for i, c in enumerate(state.chains)]
        other = State(mixed, state.batches, state.settler)
        if other.judge() and other.score < state.score - 1e-9:
            state = other
    return state


class Moves:
    """Draws changes of a state, mostly of the replica that ends last. Equal states get equal series of changes."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self._random = costs, Random(0)
        self._cutter = Cutter(costs.cluster.slowdowns, costs.degrees)
        rows = costs.cluster.slowdowns
        self._uneven = [n for n, row in enumerate(rows) if len(set(row)) > 1 or (row and row[0] > 1)]

    def draw(self, state: State) -> Changed:
        """An empty one is none."""
        ends = [c.estimate(m) for c, m in zip(state.chains, state.counts, strict=True)]
        kind, late = self._random.random(), max(range(len(ends)), key=ends.__getitem__)
        i = late if self._random.random() < 0.6 else self._random.randrange(len(ends))
        if kind < 0.35 and self._uneven:
            return self._cut(state, self._pick(self._uneven), i)
        mine = list(state.chains[i].groups)
        group = mine.pop(self._random.randrange(len(mine)))
        if kind < 0.4 or len(ends) == 1:
            return {i: mine}
        j = (i + 1 + self._random.randrange(len(ends) - 1)) % len(ends)
        return self._pass_on(i, mine, group, j, list(state.chains[j].groups))

    def _pass_on(self, i: int, mine: list[Group], group: Group, j: int, theirs: list[Group]) -> Changed:
        """Gives a group to another replica, and mostly takes one of another speed back."""
        if self._random.random() < 0.4:
            return {i: mine, j: [*theirs, group]}
        other = theirs.pop(self._random.randrange(len(theirs)))
        if sort(group) == sort(other):
            return {}
        return {i: [*mine, other], j: [*theirs, group]}

    def _cut(self, state: State, node: int, i: int) -> Changed:
        """Cuts a node otherwise. Its groups go to replicas that had some of it, or to one more."""
        if self._random.random() < 0.5:
            groups = self._cutter.node_groups(node, self._pick(self._costs.degrees), self._pick(PENALTIES))
        else:
            groups = self._any_groups(node)
        old = {r: [g for g in c.groups if g.node != node] for r, c in enumerate(state.chains)}
        changed = {r: rest for r, rest in old.items() if len(rest) < len(state.chains[r].groups)}
        changed.setdefault(i, old[i])
        for group in groups:
            changed[self._pick(sorted(changed))].append(group)
        return changed

    def _any_groups(self, node: int) -> tuple[Group, ...]:
        """Runs of random sizes, of devices in order of speed; a run of one may be left out."""
        row, found = self._costs.cluster.slowdowns[node], list[Group]()
        left = sorted((x, d) for d, x in enumerate(row) if x < float("inf"))
        while left:
            run = left[: self._pick([d for d in self._costs.degrees if d <= len(left)])]
            del left[: len(run)]
            if len(run) > 1 or self._random.random() < 0.8:
                found.append(make_group(node, (d for _, d in run), run[-1][0]))
        return tuple(found)

    def _pick(self, of: Sequence[T]) -> T:
        return of[self._random.randrange(len(of))]
