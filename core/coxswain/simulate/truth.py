"""What is true of the cluster at each moment of a trace: constant between the beginnings and ends of events."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coxswain.layout import Device
from coxswain.simulate.traces import SLOWING, Event, Trace, place

ARMED = 600.0  # seconds after which an armed event begins without a change


@dataclass(frozen=True)
class Truth:
    """`since`: when it became so. `slowdowns` by node and device, infinite: lost. `fleet` slows all devices alike."""

    since: float
    slowdowns: tuple[tuple[float, ...], ...]
    bandwidths: tuple[float, ...]
    fleet: float = 1.0
    pauses: float = 0.0  # the longest, seconds
    long: float = 1.0  # the most that a replica's step takes longer by
    planning: float = 1.0  # how much longer planning takes

    @property
    def lost(self) -> frozenset[Device]:
        rows = enumerate(self.slowdowns)
        return frozenset(Device(n, d) for n, row in rows for d, x in enumerate(row) if math.isinf(x))

    def alike(self, other: Truth) -> bool:
        """The same devices at the same speeds."""
        return self.slowdowns == other.slowdowns and self.bandwidths == other.bandwidths


class Timeline:
    """The truth of one run. Armed events begin with the run's own changes, so each run has a timeline of its own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._events = [e for e in trace.events if e.kind != "armed"]
        self._armed = [e for e in trace.events if e.kind == "armed"]
        self._sort()

    def _sort(self) -> None:
        self._edges = sorted({0.0, *(e.t for e in self._events), *(e.end for e in self._events if e.end < math.inf)})
        self._losses = sorted((e for e in self._events if e.kind == "lost"), key=lambda e: e.t)
        self._starts = [e.t for e in self._losses]
        self._edges_armed = min((e.t + ARMED for e in self._armed), default=math.inf)
        self._span = (0.0, 0.0)
        self._now: Truth | None = None

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
        active = [e for e in self._events if e.t <= now < e.end]
        rows = [[1.0] * self._trace.devices for _ in range(self._trace.nodes)]
        rates = [1.0] * self._trace.nodes
        for event in active:
            if event.kind in ("bandwidth", "congestion"):
                rates[place(event.component)[1]] *= event.magnitude
            for device in self._devices(event) if event.kind in (*SLOWING, "lost") else ():
                rows[device.trainer][device.device] *= math.inf if event.kind == "lost" else event.magnitude
        return Truth(
            now, tuple(map(tuple, rows)), tuple(rates), math.prod(_of(active, "drift")),
            max(_of(active, "pauses"), default=0.0), max(_of(active, "long"), default=1.0),
            math.prod(_of(active, "coordinator")),
        )  # fmt: skip


def _of(events: Sequence[Event], kind: str) -> list[float]:
    return [e.magnitude for e in events if e.kind == kind]
