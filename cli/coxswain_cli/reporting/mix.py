"""Tokens per source against the weights of the mix: shares so far, trained and by weight."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from coxswain.membership.values import MixRecord
from coxswain_cli.reporting.charts import COLOURS, POINTS, Chart, Series, draw
from coxswain_cli.reporting.formatting import short
from coxswain_cli.reporting.markup import Markup, join, percent, tag
from coxswain_cli.reporting.model import MixInForce, RecordedRun, RecordedStep

T = TypeVar("T")

DRAWN_SOURCES = 12
"""Those with most tokens have curves of their own: with 300 the page would have 11 MB."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """One source over the run: cumulative tokens after each drawn step, and those that its weight asked for (None: unknown)."""

    name: str
    tokens: tuple[int, ...]
    wanted: tuple[float, ...] | None


def weights_by_phase(mix: MixRecord) -> list[Mapping[str, int]]:
    """Those before the first phase, then those of each."""
    return [mix.weights, *({name: phase.weights.get(name, 0) for name in mix.weights} for phase in mix.phases)]


def phase_at(
    mix: MixRecord, weights: Sequence[Mapping[str, int]], step: int, tokens: int, parts: Mapping[str, int]
) -> int:
    """Which of the `weights` by phase are in force at a step of these `parts`, before which `tokens` were trained on: those of
    the last phase that has begun.

    A phase ends early once all its sources have left: those of the first phase from there on that has one of the step's
    sources.
    """
    begun = sum(tokens >= p.from_tokens if p.from_step < 0 else step >= p.from_step for p in mix.phases)
    if begun == len(mix.phases):
        return begun
    drawn = {name for name, part in parts.items() if part}
    return next((n for n in range(begun, len(weights)) if any(weights[n].get(name) for name in drawn)), begun)


def drawn(steps: Sequence[T]) -> tuple[T, ...]:
    """What is drawn of so many: with 300 sources all of a long run would not fit in memory. The last one is among them."""
    count = min(len(steps), POINTS)
    return tuple(steps[len(steps) * (i + 1) // count - 1] for i in range(count))


def source_shares(steps: Sequence[RecordedStep], mixes: Sequence[MixInForce]) -> tuple[SourceShare, ...]:
    """`mixes`: in the order of their first steps; empty: unknown. Reads the sources of each step once."""
    kept = set(drawn(range(len(steps))))
    sums, wanted, found = _Sums(), _Wanted(mixes), []
    for place, step in enumerate(steps):
        parts = dict(step.tokens_by_source.items())
        sums.add(parts)
        wanted.add(step, parts)
        if place in kept:
            found.append((sums.by_source(), wanted.by_source()))
    names = sorted({*(found[-1][0] if found else ()), *(name for m in mixes for name in m.record.weights)})
    return tuple(
        SourceShare(
            name=name,
            tokens=tuple(tokens.get(name, 0) for tokens, _ in found),
            wanted=tuple(asked.get(name, 0.0) for _, asked in found) if mixes else None,
        )
        for name in names
    )


class _Sums:
    """Tokens by source so far. Most steps have the sources of the one before: their numbers are added as lists."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: list[int] = []
        self._others = Counter[str]()

    def add(self, parts: Mapping[str, int]) -> None:
        if (names := tuple(parts)) != self._names:
            self._others = self.by_source()
            self._names, self._sums = names, [0] * len(names)
        self._sums = list(map(operator.add, self._sums, parts.values()))

    def by_source(self) -> Counter[str]:
        found = self._others.copy()
        found.update(dict(zip(self._names, self._sums, strict=True)))
        return found


class _Wanted:
    """Tokens by source that the weights have asked for so far: kept as the tokens of each phase of each mix."""

    def __init__(self, mixes: Sequence[MixInForce]) -> None:
        self._mixes, self._first_steps = mixes, [m.first_step for m in mixes]
        self._weights = [weights_by_phase(m.record) for m in mixes]
        self._trained, self._tokens = 0, Counter[tuple[int, int]]()

    def add(self, step: RecordedStep, parts: Mapping[str, int]) -> None:
        if self._mixes:
            mix = max(bisect_right(self._first_steps, step.step) - 1, 0)
            phase = phase_at(self._mixes[mix].record, self._weights[mix], step.step, self._trained, parts)
            self._tokens[mix, phase] += step.tokens
        self._trained += step.tokens

    def by_source(self) -> dict[str, float]:
        found = defaultdict[str, float](float)
        for (mix, phase), tokens in self._tokens.items():
            weights = self._weights[mix][phase]
            total = sum(weights.values()) or 1
            for name, weight in weights.items():
                found[name] += tokens * weight / total
        return found


def section(run: RecordedRun) -> Markup:
    """Bars of the whole run and the curves of the shares; empty where no step says what it was made of."""
    shares = source_shares(run.steps, run.mixes)
    totals = drawn(list(accumulate(s.tokens for s in run.steps)))
    if not shares or not totals or not totals[-1]:
        return Markup("")
    rows = join(_bar(number, share, totals[-1]) for number, share in enumerate(shares))
    bars = tag("div", rows, _legend(shares), class_="bars")
    return join((bars, draw(over_time(run, shares, totals))))


def over_time(run: RecordedRun, shares: Sequence[SourceShare], totals: Sequence[int]) -> Chart:
    """Share of all tokens so far, per source; dashed what the weights ask for."""
    series = []
    for number, share in enumerate(_drawn_shares(shares)):
        series.append(Series(share.name, number, _shares(share.tokens, totals)))
        if share.wanted is not None:
            series.append(Series(f"{share.name} by weight", number, _shares(share.wanted, totals), "dashed"))
    steps = tuple(s.step for s in drawn(run.steps))
    return Chart("Sources over time", "% of all tokens so far", steps, tuple(series), "dashed: by the mix's weights")


def _drawn_shares(shares: Sequence[SourceShare]) -> list[SourceShare]:
    """As they are, or the largest and one for all others."""
    if len(shares) <= DRAWN_SOURCES + 1:
        return list(shares)
    largest = {s.name for s in sorted(shares, key=lambda s: -s.tokens[-1])[:DRAWN_SOURCES]}
    own, others = ([s for s in shares if (s.name in largest) is mine] for mine in (True, False))
    wanted = None if others[0].wanted is None else tuple(map(sum, zip(*(s.wanted or () for s in others), strict=True)))
    tokens = tuple(map(sum, zip(*(s.tokens for s in others), strict=True)))
    return [*own, SourceShare(f"{len(others)} others", tokens, wanted)]


def _shares(tokens: Sequence[float], totals: Sequence[int]) -> tuple[float | None, ...]:
    return tuple(100 * t / total if total else None for t, total in zip(tokens, totals, strict=True))


def _bar(number: int, share: SourceShare, total: int) -> Markup:
    """`name  ███████|  70.1 % (70 by weight), 1.2M tokens`."""
    part = share.tokens[-1] / total
    filled = tag("i", class_=f"b{number % COLOURS}", style=f"width:{percent(part)}")
    if share.wanted is None:
        return _row(share.name, filled, f"{100 * part:.1f} %", share.tokens[-1])
    goal = share.wanted[-1] / total
    target = tag("em", style=f"left:{percent(goal)}", title="the mix's weight")
    return _row(
        share.name, join((filled, target)), f"{100 * part:.1f} %, by weight {100 * goal:.1f} %", share.tokens[-1]
    )


def _row(name: str, bar: Markup, shares: str, tokens: int) -> Markup:
    label = tag("div", tag("b", name), tag("span", f"{shares}, {short(tokens)} tokens"), class_="label")
    return tag("div", label, tag("div", bar, class_="track"), class_="bar")


def _legend(shares: Sequence[SourceShare]) -> Markup:
    known = any(s.wanted is not None for s in shares)
    return tag(
        "p",
        "upright tick: the share that the mix's weights ask for" if known else "the mix's weights are not known here",
    )
