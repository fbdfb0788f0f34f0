"""What is true of the cluster at each moment of a trace: constant between the beginnings and ends of events."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from coxswain.layout import Device
from coxswain.simulate.traces import SLOWING, Event, Trace, place

ARMED = 600.0  # seconds after which an armed event begins without a change
Odd = Mapping[tuple[int, int], float]
"""Slowdown by (node, device), infinite: lost; the part of its bandwidth that is left by (node, -1). What is left out is 1."""


@dataclass(frozen=True)
class Truth:
    """`since`: when it became so. `fleet` slows all devices alike."""

    since: float
    odd: Odd
    shape: tuple[int, int]  # nodes, and devices of each
    fleet: float = 1.0
    pauses: float = 0.0  # the longest, seconds
    long: float = 1.0  # the most that a replica's step takes longer by
    planning: float = 1.0  # how much longer planning takes

    @cached_property
    def key(self) -> tuple[tuple[tuple[int, int], float], ...]:
        """Equal where devices and networks are equally fast."""
        return tuple(sorted((place, x) for place, x in self.odd.items() if x != 1))

    @cached_property
    def slowdowns(self) -> tuple[tuple[float, ...], ...]:
        """By node and device."""
        well = (1.0,) * self.shape[1]
        rows = dict[int, list[float]]()
        for (node, device), x in self.key:
            if device >= 0:
                rows.setdefault(node, list(well))[device] = x
        return tuple(tuple(rows[n]) if n in rows else well for n in range(self.shape[0]))

    @cached_property
    def bandwidths(self) -> tuple[float, ...]:
        return tuple(self.odd.get((n, -1), 1.0) for n in range(self.shape[0]))

    @cached_property
    def lost(self) -> frozenset[Device]:
        return frozenset(Device(n, d) for (n, d), x in self.key if math.isinf(x))

    def of(self, device: Device) -> float:
        """Its slowdown."""
        return self.odd.get((device.trainer, device.device), 1.0)


class Timeline:
    """The truth of one run. Armed events begin with the run's own changes, so each run has a timeline of its own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._events = [e for e in trace.events if e.kind != "armed"]
        self._armed = [e for e in trace.events if e.kind == "armed"]
        self._sort()

    def _sort(self) -> None:
        self._events.sort(key=lambda e: e.t)
        self._edges = sorted({0.0, *(e.t for e in self._events), *(e.end for e in self._events if e.end < math.inf)})
        self._losses = [e for e in self._events if e.kind == "lost"]
        self._starts = [e.t for e in self._losses]
        self._edges_armed = min((e.t + ARMED for e in self._armed), default=math.inf)
        self._span = (0.0, 0.0)
        self._now: Truth | None = None
        self._begun, self._swept, self._active = 0, 0.0, list[Event]()

    def changed(self, now: float) -> None:
        """A layout changes: what was armed before begins."""
        begun = [e for e in self._armed if e.t <= now]
        if begun:
            self._begin(begun, now)

    def _begin(self, events: Iterable[Event], now: float) -> None:
        for event in events:
            self._armed.remove(event)
            self._events.append(Event(now, event.component, "sick", event.magnitude, event.duration))
        self._sort()

    def replaced(self, node: int, now: float) -> float:
        """Another node comes in its place: what befell it ends. Returns when the old one would have been well."""
        mine = [e for e in self._events if e.t <= now < e.end and place(e.component)[1] == node]
        kept = [e for e in self._events if e not in mine]
        self._events = kept + [replace(e, duration=now - e.t) for e in mine if e.t < now]
        self._sort()
        return max((e.end for e in mine), default=now)

    def at(self, now: float) -> Truth:
        if now >= self._edges_armed:
            self._begin([e for e in self._armed if e.t + ARMED <= now], now)
        return self.peek(now)

    def peek(self, now: float) -> Truth:
        """As `at`, but armed events stay armed."""
        if self._now is None or not self._span[0] <= now < self._span[1]:
            index = bisect_right(self._edges, now)
            self._span = self._edges[index - 1], self._edges[index] if index < len(self._edges) else math.inf
            self._now = self._truth(self._span[0])
        return self._now

    def next_change(self, now: float) -> float:
        """When the truth changes next; infinite: never."""
        return min(self.next_edge(now), self._edges_armed)

    def next_edge(self, now: float) -> float:
        """As `next_change`, but armed events stay armed."""
        index = bisect_right(self._edges, now)
        return self._edges[index] if index < len(self._edges) else math.inf

    def next_loss(self, begin: float, end: float, used: frozenset[Device]) -> float | None:
        """When one of these devices is lost within [begin, end); None: not."""
        for event in self._losses[bisect_right(self._starts, begin) : bisect_right(self._starts, end)]:
            if event.t < end and used & frozenset(self._devices(event)):
                return event.t
        return None

    def _devices(self, event: Event) -> Iterator[Device]:
        scope, node, device = place(event.component)
        yield from (
            [Device(node, device)] if scope == "device" else (Device(node, d) for d in range(self._trace.devices))
        )

    def _truth(self, now: float) -> Truth:
        active = self._sweep(now)
        odd: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
        for event in active:
            if event.kind in ("bandwidth", "congestion"):
                odd[place(event.component)[1], -1] *= event.magnitude
            for device in self._devices(event) if event.kind in (*SLOWING, "lost") else ():
                odd[device.trainer, device.device] *= math.inf if event.kind == "lost" else event.magnitude
        return Truth(
            now, dict(odd), (self._trace.nodes, self._trace.devices), math.prod(_of(active, "drift")),
            max(_of(active, "pauses"), default=0.0), max(_of(active, "long"), default=1.0),
            math.prod(_of(active, "coordinator")),
        )  # fmt: skip

    def _sweep(self, now: float) -> list[Event]:
        """What goes on at a moment. Moments come nearly in order, so that each event is looked at while it lasts."""
        if now < self._swept:
            self._begun, self._active = 0, []
        begun = bisect_right(self._events, now, lo=self._begun, key=lambda e: e.t)
        self._active = [e for e in self._active + self._events[self._begun : begun] if now < e.end]
        self._begun, self._swept = begun, now
        return self._active


def _of(events: Sequence[Event], kind: str) -> list[float]:
    return [e.magnitude for e in events if e.kind == kind]
