"""A trace: what befalls a cluster, and when. A file of JSON lines that can be replayed.

The first line says how large the cluster is, how long the trace, and from which seed the noise of steps is drawn:
`{"nodes": 8, "devices": 8, "seconds": 86400, "seed": 0}`, `devices` of each node. Each other line is one event.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, get_args

import msgspec

from coxswain.errors import Refused
from coxswain.structs import UNDECODABLE, prepare

T = TypeVar("T")
Scope = Literal["device", "node", "fleet", "coordinator"]
Kind = Literal[
    "contention", "thermal", "sick", "node", "flapping", "ramp", "armed", "bandwidth", "congestion", "drift", "pauses",
    "long", "coordinator", "lost",
]  # fmt: skip
SCOPES: dict[str, tuple[Scope, ...]] = {
    "contention": ("node",), "thermal": ("device",), "sick": ("device",), "node": ("node",), "flapping": ("device",),
    "ramp": ("device",), "armed": ("device",), "bandwidth": ("node",), "congestion": ("node",), "drift": ("fleet",),
    "pauses": ("fleet",), "long": ("fleet",), "coordinator": ("coordinator",), "lost": ("device", "node"),
}  # fmt: skip
SLOWING = ("contention", "thermal", "sick", "node", "flapping", "ramp", "armed")
FALSE_POSITIVES = ("drift", "pauses", "long")
MOST_DEVICES = 100_000
"""Of a cluster: each is in memory."""
MOST_SECONDS = 36_000_000.0
"""10,000 hours: every step is counted."""
_COMPONENT = re.compile(r"n(\d+)(?:/(\d+))?")


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From second `t` on for `duration` seconds, null for the rest. `component`: n3, n3/5 (device 5 of it), fleet, coordinator.

    `magnitude`: how many times slower; of bandwidth and congestion the part of the rate that is left; of pauses the
    longest in seconds; of long the most that a replica's step takes longer by; of lost nothing. `armed`: the device
    gets slow when a layout first changes after `t`, 600 s after it at the latest.
    """

    t: float
    component: str
    kind: Kind
    magnitude: float = 1.0
    duration: float | None = None

    @property
    def end(self) -> float:
        return math.inf if self.duration is None else self.t + self.duration


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: int
    devices: int
    seconds: float
    seed: int = 0


@dataclass(frozen=True)
class Trace:
    """Events by time, for `nodes` nodes of `devices` devices."""

    nodes: int
    devices: int
    seconds: float
    seed: int
    events: tuple[Event, ...]

    def encode(self) -> bytes:
        lines = [Header(self.nodes, self.devices, self.seconds, self.seed), *self.events]
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@cache
def place(component: str) -> tuple[Scope, int, int]:
    """Scope, node and device of a component; -1 where it has none. Raises ValueError."""
    if component in ("fleet", "coordinator"):
        return component, -1, -1  # type: ignore[return-value]
    found = _COMPONENT.fullmatch(component)
    if not found:
        raise ValueError(component)
    return ("node" if found[2] is None else "device"), int(found[1]), int(found[2] or -1)


def read_trace(raw: bytes, where: str) -> Trace:
    """Decodes and checks a trace. Raises Refused, which names the line and the field."""
    lines = [(number, line) for number, line in enumerate(raw.splitlines(), start=1) if line.strip()]
    if not lines:
        raise Refused("BadTrace", f"{where}: no lines; the first one has nodes, devices, seconds and seed")
    header = _decoded(lines[0], Header, where)
    events = [_decoded(line, Event, where) for line in lines[1:]]
    for name, most in (("nodes", MOST_DEVICES), ("devices", MOST_DEVICES), ("seconds", MOST_SECONDS)):
        if not 0 < (value := getattr(header, name)) <= most:
            form = f"it must be above 0 and at most {most:.0f}"
            raise Refused("BadTrace", f"{where}, line {lines[0][0]}: {name} is {value}; {form}")
    if (every := header.nodes * header.devices) > MOST_DEVICES:
        form = f"{header.nodes} nodes of {header.devices} devices have {every}; they may have {MOST_DEVICES}"
        raise Refused("BadTrace", f"{where}, line {lines[0][0]}: {form}")
    if not 0 <= header.seed < 1 << 63:
        raise Refused("BadTrace", f"{where}, line {lines[0][0]}: seed is {header.seed}; it must be 0 to 2^63 - 1")
    numbered = [(number, event) for (number, _), event in zip(lines[1:], events, strict=True)]
    for number, event in numbered:
        if message := _fault(event, header):
            raise Refused("BadTrace", f"{where}, line {number}: {message}")
    _refuse_overlaps(numbered, where)
    ordered = tuple(sorted(events, key=lambda e: (e.t, e.component, e.kind)))
    return Trace(header.nodes, header.devices, header.seconds, header.seed, ordered)


def _refuse_overlaps(events: Sequence[tuple[int, Event]], where: str) -> None:
    lasting: dict[tuple[str, str], tuple[int, Event]] = {}
    for number, event in sorted(events, key=lambda e: e[1].t):
        other = lasting.get((event.component, event.kind))
        if other and overlap(other[1], event):
            until = "the end" if other[1].duration is None else f"second {other[1].end:g}"
            raise Refused(
                "BadTrace",
                f"{where}, line {number}: {event.kind} of {event.component} begins at t {event.t:g}, and that of line "
                f"{other[0]} lasts until {until}; end the first one before, or use another kind: slowdowns multiply",
            )
        lasting[event.component, event.kind] = number, event


def overlap(first: Event, second: Event) -> bool:
    """Whether the second one begins while the first one lasts, by more than rounding."""
    return second.t < first.end - 1e-6


def _decoded(line: tuple[int, bytes], kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(line[1], type=kind)
    except UNDECODABLE as error:
        raise Refused("BadTrace", f"{where}, line {line[0]}: {error}; see docs/design/simulate.md") from None


def _fault(event: Event, header: Header) -> str | None:
    """Why an event cannot be; None: it can."""
    try:
        scope, node, device = place(event.component)
    except ValueError:
        return f"component is {event.component!r}; use n3, n3/5, fleet or coordinator"
    if scope not in SCOPES[event.kind]:
        return f"component is {event.component!r}; {event.kind} befalls a {' or a '.join(SCOPES[event.kind])}"
    if node >= header.nodes or device >= header.devices:
        return f"component is {event.component!r}; the cluster has {header.nodes} nodes of {header.devices} devices"
    if event.t >= header.seconds:
        return f"t is {event.t:g}; the trace ends at second {header.seconds:g}"
    if event.t < 0 or (event.duration is not None and event.duration <= 0):
        return f"t is {event.t} and duration {event.duration}; t must be at least 0, duration above 0 or null"
    low, high = magnitudes(event.kind)
    if not low <= event.magnitude <= high:
        return f"magnitude is {event.magnitude}; of {event.kind} it must be {low:g} to {high:g}"
    return None


def magnitudes(kind: Kind) -> tuple[float, float]:
    """What is allowed."""
    if kind in ("bandwidth", "congestion"):
        return 0.01, 1.0
    return (0.0, 60.0) if kind == "pauses" else (1.0, 1000.0)


assert set(SCOPES) == set(get_args(Kind))


prepare(__name__)
