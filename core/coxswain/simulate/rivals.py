"""What other systems would do in the same trace, at their best: they know each device's true speed once their detection
would have found it, never act on noise, and have our layouts where theirs are not published.

All share the restart and the checkpoints of `Settings`. What else each costs is what its paper or its code says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.malleus import THRESHOLD, malleus
from coxswain.plan.layouts.migration import migration
from coxswain.plan.layouts.result import kept_in_place
from coxswain.plan.layouts.rivals import data_only, layers_only, resihp, rigid
from coxswain.plan.layouts.search import search, without
from coxswain.plan.layouts.settle import Draft, Settler
from coxswain.simulate.run import Measured, Run
from coxswain.simulate.truth import Truth
from coxswain.simulate.world import World, load_seconds, planning_seconds, replicas_of

DETECT = 10.56  # seconds from onset to a found straggler in GREYHOUND (Wu et al., ATC 2025)
FORM = 1.0  # seconds of forming the next world, as of ours
COUNTED = 64  # devices up to which what moves is counted for rivals; listing it takes seconds of planning elsewhere
GAP = 0.3  # a rate that moves by less is no reason to plan, in the code of Malleus

Rates = tuple[tuple[float, ...], ...]
Find = Callable[[World, Costs, Draft], Draft | None]


@dataclass(frozen=True)
class Kind:
    """A system. `find`: its layout for known slowdowns, from the running one; None: it changes nothing.

    `planning`: seconds until it is found, beside training, by (devices, replicas). `restarts`: its own changes are
    restarts, made when the loss since the onset reaches their cost; else they stop training for what moves. `window`:
    slow steps until it sees one, and DETECT seconds. `least`: how many times slower or faster a device must become for it
    to notice. `in_place`: losses are survived without a checkpoint. `searches`: a loss is followed by a layout of our search,
    which takes it what it takes us. `published`: acts as its code does, whether or not that is faster than staying.
    """

    name: str
    find: Find | None = None
    planning: Callable[[int, int], float] = lambda devices, replicas: 0.0
    restarts: bool = False
    window: int = 3
    least: float = 1.0
    in_place: bool = False
    searches: bool = False
    published: bool = False


@dataclass(frozen=True)
class Choice:
    draft: Draft
    step: float  # seconds of its step
    cost: float
    cause: str
    rents: bool
    rates: Rates  # that it was planned for


class Known:
    """How fast a device or a network is, known once it was so for `window` steps and DETECT seconds; losses at once.

    What is less than `least` times another one than is known is not noticed: speeds of devices, and steps because of networks.
    """

    def __init__(self, shape: tuple[int, int], window: int, least: float = 1.0) -> None:
        self.truth, self._window, self._least = Truth(0.0, {}, shape), window, least
        self._seen = self.truth
        self._pending: dict[tuple[int, int], tuple[float, int]] = {}  # since when, and the number of the first step
        self._steps = 0

    def learn(self, truth: Truth, now: float, felt: float = math.inf) -> bool:
        """After a step. Whether something is known now that was not. `felt`: how many times longer or shorter a step is than by
        what is known."""
        self._steps += 1
        if truth is not self._seen:
            changed = {place for place, _ in set(truth.key) ^ set(self._seen.key)}
            self._pending |= dict.fromkeys(changed, (truth.since, self._steps))
            self._seen = truth
        ripe = [p for p, (since, step) in self._pending.items() if self._ripe(p, since, step, now)]
        found = [p for p in ripe if p[1] >= 0 or felt >= self._least]
        for place in found:
            del self._pending[place]
        return self._know(found) if found else False

    def _ripe(self, place: tuple[int, int], since: float, step: int, now: float) -> bool:
        known, new = self.truth.odd.get(place, 1.0), self._seen.odd.get(place, 1.0)
        old = self._steps - step + 1 >= self._window and now - since >= DETECT
        return math.isinf(new) or (old and max(known, new) >= self._least * min(known, new))

    def _know(self, places: Sequence[tuple[int, int]]) -> bool:
        before = self.truth
        odd = dict(before.odd) | {place: self._seen.odd.get(place, 1.0) for place in places}
        self.truth = Truth(self._seen.since, odd, before.shape)
        return self.truth.key != before.key


class Rival:
    """One system in one run."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.name = kind, kind.name
        self._known: Known | None = None
        self._plan: tuple[float, Sequence[Choice]] | None = None
        self._rent = 0.0  # seconds that restarting at the onset would have saved so far
        self._done = True
        self._rates: Rates = ()  # that the layout was planned for, as published
        self._news = False  # whether something is known that nothing was planned for
        self._planning = False  # a plan that is kept until it is there: the published code plans while it waits

    def _knows(self, run: Run) -> Known:
        self._known = self._known or Known((run.trace.nodes, run.trace.devices), self.kind.window, self.kind.least)
        return self._known

    def stepped(self, run: Run, measured: Measured) -> None:
        known = self._knows(run)
        self._news |= known.learn(run.truth, run.now, self._felt(run, known.truth))
        if self._news and not self._planning:
            self._plan, self._done, self._news = None, False, False
        if not self._done:
            self._consider(run, known.truth)

    def _felt(self, run: Run, known: Truth) -> float:
        if self.kind.least == 1:
            return math.inf
        now, before = _seconds(run, run.draft, run.truth), _seconds(run, run.draft, known)
        return max(now, before) / min(now, before)

    def _consider(self, run: Run, truth: Truth) -> None:
        stays = _seconds(run, run.draft, truth)
        if self._plan is None:
            self._begin(run, truth, stays)
            run.plans += 1
        assert self._plan
        ready, choices = self._plan
        self._done = not choices
        self._rent += max((stays - c.step for c in choices if c.rents), default=-self._rent)
        if run.now < ready:
            return
        self._planning = False
        for choice in choices:
            if not choice.rents or self._rent >= choice.cost:
                self._done, self._plan, self._rent, self._rates = self.kind.published, None, 0.0, choice.rates
                run.change(choice.draft, choice.cost, choice.cause)
                return

    def _begin(self, run: Run, truth: Truth, stays: float) -> None:
        """Plans, beside training. The steps until the cause was known count as rent too."""
        took = self.kind.planning(run.world.costs.cluster.devices, len(run.draft.chains)) * run.truth.planning
        choices = self._choices(run, truth)
        self._plan, self._planning = (run.now + took, choices), self.kind.published and bool(choices)
        if not self._rent:
            self._rent = (self.kind.window - 1) * max((stays - c.step for c in choices if c.rents), default=0.0)

    def _choices(self, run: Run, truth: Truth) -> list[Choice]:
        """Its own layout, and to take back by a restart devices that run no part of the present one; those worth it."""
        costs, stays, found = run.world.under(truth), _seconds(run, run.draft, truth), []
        if self.kind.find and self._moved(_rates(truth)) and (draft := self._found(run, truth)):
            found.append(self._choice(run, truth, draft, self.kind.restarts))
        back = frozenset(replicas_of(run.world.healthy)) - run.devices - truth.lost
        name = f"{self.name} again"
        if back and (draft := run.world.kept(name, truth.key, (), lambda: self._best(run.world, costs))):
            found.append(self._choice(run, truth, draft, not self.kind.in_place))
        found = [c for c in found if math.isfinite(c.step)]
        return [c for c in found if c.step < stays - 1e-9 or (self.kind.published and c.draft != run.draft)]

    def _moved(self, rates: Rates) -> bool:
        """As published by Malleus: a rate that moves by little is no reason."""
        if not self.kind.published:
            return True
        before = self._rates or tuple((1.0,) * len(row) for row in rates)
        pairs = (pair for rows in zip(rates, before, strict=True) for pair in zip(*rows, strict=True))
        return any(x != y and abs(x - y) >= GAP for x, y in pairs)

    def _choice(self, run: Run, truth: Truth, draft: Draft, restart: bool) -> Choice:
        step = _seconds(run, draft, truth)
        if restart:  # saves and loads a checkpoint; nothing is done again
            cost = run.settings.restart + 2 * load_seconds(run.world)
            return Choice(draft, step, cost, "restart", True, _rates(truth))
        return Choice(draft, step, _moving(run, draft, truth), "migration", False, _rates(truth))

    def _found(self, run: Run, truth: Truth) -> Draft | None:
        find, costs = self.kind.find, run.world.under(truth)
        return find and run.world.kept(self.name, truth.key, (run.draft,), lambda: find(run.world, costs, run.draft))

    def _best(self, world: World, costs: Costs) -> Draft | None:
        """The best layout for the devices left, as if none were slow, then what the system itself would make of it."""
        found = whole(world, costs)
        return (self.kind.find and found and self.kind.find(world, costs, found)) or found

    def lost(self, run: Run) -> bool:
        """From the checkpoint on the best layout for the devices left; in place where the system can, unless it stands still."""
        run.wait(run.settings.loss, "losses")
        truth = run.truth
        costs = run.world.under(truth)
        draft = self._best(run.world, costs) if len(truth.lost) < run.world.costs.cluster.devices else None
        if draft is None:
            return False
        if self.kind.searches:
            run.wait(planning_seconds(run.world.costs.cluster.devices) * truth.planning, "planning")
        if self.kind.in_place and not run.stopped:
            run.change(draft, FORM + migration(costs, run.draft, draft).seconds)
        else:
            run.redo()
            run.change(draft, run.settings.restart + load_seconds(run.world), "restart")
        self._plan, self._done, self._planning, self._rates = None, False, False, _rates(truth)
        return True


def _rates(truth: Truth) -> Rates:
    """As published by Malleus: what is not above its threshold is not slow."""
    return tuple(tuple(x if x >= THRESHOLD else 1.0 for x in row) for row in truth.slowdowns)


def _moving(run: Run, draft: Draft, truth: Truth) -> float:
    """Seconds of what moves, none where only micro-batches do; of large clusters no more than forming the next world."""
    if _held(draft) == _held(run.draft):
        return 0.0
    if run.world.costs.cluster.devices > COUNTED:
        return FORM
    find = lambda: migration(run.world.under(truth), run.draft, draft)  # noqa: E731
    moved = run.world.kept("moved", truth.key, (run.draft, draft), find)
    return FORM + moved.seconds if moved.bytes else 0.0


def _held(draft: Draft) -> list[tuple[object, ...]]:
    """Devices and layers."""
    return [(c.layers, *((g.node, g.devices) for g in c.groups)) for c in draft.chains]


def _seconds(run: Run, draft: Draft, truth: Truth) -> float:
    return float(run.world.ends(draft, truth).max())


def whole(world: World, costs: Costs) -> Draft | None:
    """The best layout without lost devices, as if none were slow."""
    return _left(world, costs, math.inf)


def _left(world: World, costs: Costs, limit: float) -> Draft | None:
    """The best layout of the devices that are not so slow, as if they were well; searched once for the same devices."""
    rows = [[1.0 if x < limit else math.inf for x in row] for row in costs.cluster.slowdowns]
    gone = tuple((n, d) for n, row in enumerate(rows) for d, x in enumerate(row) if x > 1)
    if not gone:
        return world.healthy

    def find() -> Draft | None:
        left = without(world.costs, rows)
        return search(left) if left else None

    return world.kept("left", gone, (), find)


def fast(world: World, costs: Costs, current: Draft) -> Draft | None:
    """The best layout without slow devices, or with all where that is faster."""
    drafts = [d for limit in (math.inf, 1.1) if (d := _left(world, costs, limit))]
    judged = [(now.seconds, i) for i, d in enumerate(drafts) if (now := rigid(costs, d))]
    return drafts[min(judged)[1]] if judged else None


def dropped(world: World, costs: Costs, current: Draft) -> Draft | None:
    """The healthy layout less the replicas with lost devices, and less those with slow ones where that is faster."""
    rows, drafts = costs.cluster.slowdowns, []
    for limit in (math.inf, 1.1):
        chains = [c for c in world.healthy.chains if all(rows[g.node][d] < limit for g in c.groups for d in g.devices)]
        draft = Settler(world.costs).deal(chains) if chains else None
        if draft and (now := rigid(costs, draft)):
            drafts.append((now.seconds, draft))
    return min(drafts, key=lambda d: d[0])[1] if drafts else None


def best(world: World, costs: Costs, current: Draft) -> Draft | None:
    """Ours, without weighing what it moves."""
    found = search(costs)
    return found and min(kept_in_place(costs, found, current), found, key=lambda d: round(d.seconds, 2))


KINDS = (
    Kind("rigid"),
    Kind("restart", fast, restarts=True),
    Kind(
        "data-only",
        lambda world, costs, current: data_only(costs, current),
        planning=lambda devices, replicas: 6.8 * (replicas / 256) ** 2.4,
        least=1.10,
    ),
    Kind(
        "layers-only",
        lambda world, costs, current: layers_only(costs, current),
        least=1.25,
        in_place=True,
        searches=True,
    ),
    Kind(
        "resihp",
        lambda world, costs, current: resihp(costs, current),
        least=1.25,
        in_place=True,
        searches=True,
    ),
    Kind(
        "malleus",
        lambda world, costs, current: malleus(costs, current),
        planning=lambda devices, replicas: 20.0 * max(1.0, devices / 64) ** 0.4,
        window=2,
        published=True,
    ),
    Kind("torchft", dropped, in_place=True),
    Kind("always", best, planning=lambda devices, replicas: planning_seconds(devices), in_place=True, searches=True),
)
"""rigid: Megatron-LM and DeepSpeed. restart: DLRover's exclusion, of devices instead of nodes, by ski rental. data-only: strategy
S2 of GREYHOUND, whose program takes 6.8 s at 256 replicas and 35.9 s at 512, and whose detection verifies a change by mean
iterations that differ by 10 % (section 4). resihp: ResiHP (arXiv 2605.06374), which looks for a slow device once an
iteration takes 25 % longer than predicted; a device that slows down so much slows down an iteration by no more. layers-only:
the same, of which only layers move. malleus: as
coded (`coxswain.plan.layouts.malleus`), planned in tens of seconds at 64 devices and a minute at 1,024, from the checkpoint
after a loss. torchft: replicas come and go. always: our layouts without the ladder, for each change of a device that lasts
three steps.
"""
NAMES = tuple(kind.name for kind in KINDS)
