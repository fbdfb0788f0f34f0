"""Traces drawn from a seed: stragglers as published studies describe them, and losses by MTBF.

Rates and sizes: GREYHOUND (Wu et al., ATC 2025) of contention, thermal events and congestion on a shared cluster; the
what-if study of ByteDance (Lin et al., OSDI 2025) of sick devices and pauses; magnitudes of hogs from the public scripts
of Malleus (arXiv 2410.13333); losses from the MTTF that Kokolis et al. report (47.7 days at 8 devices).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from random import Random

from coxswain.errors import Refused
from coxswain.simulate.traces import Event, Trace, overlap

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
HOGS = (2.57, 3.8, 5.42, 12.53)
MTBF = 47.7 * DAY * 8  # seconds of one device
REPAIR = 2 * HOUR  # mean until a lost device or node is back


class Draw:
    """One trace being drawn. Each kind has a random generator of its own, so leaving one out leaves the others as they are."""

    def __init__(self, nodes: int, devices: int, seconds: float, seed: int, kind: str) -> None:
        self.nodes, self.devices, self.seconds = nodes, devices, seconds
        self.random = Random(f"{seed}/{kind}")

    def arrivals(self, rate: float) -> Iterator[float]:
        """Poisson, `rate` a second."""
        t = self.random.expovariate(rate)
        while t < self.seconds:
            yield t
            t += self.random.expovariate(rate)

    def lasting(self, mean: float, sigma: float = 1.0) -> float:
        """Log-normal."""
        return mean * math.exp(self.random.gauss(0, sigma) - sigma**2 / 2)

    def node(self) -> str:
        return f"n{self.random.randrange(self.nodes)}"

    def device(self) -> str:
        return f"{self.node()}/{self.random.randrange(self.devices)}"


def contention(d: Draw) -> Iterator[Event]:
    """CPU contention of a whole node, two bursts of ten minutes: 1 % of nodes in 80 minutes."""
    for t in d.arrivals(0.01 * d.nodes / (80 * MINUTE)):
        node = d.node()
        for begin in (t, t + 33 * MINUTE):
            yield Event(begin, node, "contention", round(d.random.uniform(1.05, 1.28), 3), d.lasting(10 * MINUTE))


def thermal(d: Draw) -> Iterator[Event]:
    """0.5 % of devices at a time, 40 minutes each."""
    mean = 40 * MINUTE
    for t in d.arrivals(0.005 * d.nodes * d.devices / mean):
        yield Event(t, d.device(), "thermal", round(d.random.uniform(1.1, 1.3), 3), d.lasting(mean))


def sick(d: Draw) -> Iterator[Event]:
    """A hog on one device for 72 minutes with a wide spread; one a day for each 64 devices."""
    for t in d.arrivals(d.nodes * d.devices / 64 / DAY):
        yield Event(t, d.device(), "sick", d.random.choice(HOGS), d.lasting(72 * MINUTE, 1.5))


def whole_node(d: Draw) -> Iterator[Event]:
    """A node of slow devices for one to three hours; one in three days for each 64 devices."""
    for t in d.arrivals(d.nodes * d.devices / 64 / (3 * DAY)):
        magnitude, hours = round(d.random.uniform(2.57, 6.87), 2), d.random.uniform(1, 3)
        yield Event(t, d.node(), "node", magnitude, hours * HOUR)


def bandwidth(d: Draw) -> Iterator[Event]:
    """A network card at a half or a quarter of its rate, for eight hours; one a week for each 64 devices."""
    for t in d.arrivals(d.nodes * d.devices / 64 / (7 * DAY)):
        yield Event(t, d.node(), "bandwidth", d.random.choice([0.5, 0.25]), d.lasting(8 * HOUR))


def congestion(d: Draw) -> Iterator[Event]:
    """Of the network of a node, for 24 minutes; one in six hours for each 64 devices."""
    for t in d.arrivals(d.nodes * d.devices / 64 / (6 * HOUR)):
        yield Event(t, d.node(), "congestion", round(d.random.uniform(0.2, 0.75), 2), d.lasting(24 * MINUTE))


def drift(d: Draw) -> Iterator[Event]:
    """The fleet by 1 to 2 %, half of each day."""
    for day in range(math.ceil(d.seconds / DAY)):
        yield Event((day + 0.25) * DAY, "fleet", "drift", round(d.random.uniform(1.01, 1.02), 4), DAY / 2)


def pauses(d: Draw) -> Iterator[Event]:
    """Of 0.1 to 0.5 s, every 300 steps of a rank."""
    yield Event(0.0, "fleet", "pauses", 0.5, None)


def long(d: Draw) -> Iterator[Event]:
    """Sequences that take one replica up to 1.5 times as long, in each step another one; six hours of each twelve."""
    for half in range(math.ceil(d.seconds / (12 * HOUR))):
        yield Event(half * 12 * HOUR, "fleet", "long", 1.5, 6 * HOUR)


def flapping(d: Draw) -> Iterator[Event]:
    """A device slow for 30 to 120 s, well for as long, for two hours: the first at once, one a day for each 64 devices."""
    first = d.random.uniform(5 * MINUTE, 10 * MINUTE)
    for begin in (first, *d.arrivals(d.nodes * d.devices / 64 / DAY)):
        device, magnitude, t = d.device(), d.random.choice(HOGS), begin
        while t < min(begin + 2 * HOUR, d.seconds):
            on = d.random.uniform(30, 120)
            yield Event(t, device, "flapping", magnitude, on)
            t += on + d.random.uniform(30, 120)


def ramp(d: Draw) -> Iterator[Event]:
    """A device slower by 1 % each minute, up to 2, and so for an hour: at once, one in two days for each 64 devices."""
    first = d.random.uniform(5 * MINUTE, 10 * MINUTE)
    for begin in (first, *d.arrivals(d.nodes * d.devices / 64 / (2 * DAY))):
        device = d.device()
        for minute in range(1, 100):
            yield Event(begin + minute * MINUTE, device, "ramp", 1 + minute / 100, MINUTE)
        yield Event(begin + 100 * MINUTE, device, "ramp", 2.0, HOUR)


def two_at_once(d: Draw) -> Iterator[Event]:
    """Two devices of two nodes in the same second, for an hour; twice a day."""
    for t in (15 * MINUTE, *d.arrivals(2 / DAY)):
        for node in d.random.sample(range(d.nodes), min(2, d.nodes)):
            yield Event(t, f"n{node}/{d.random.randrange(d.devices)}", "sick", d.random.choice(HOGS), HOUR)


def coordinator(d: Draw) -> Iterator[Event]:
    """A coordinator whose host is slow: planning takes ten times as long, while a device is slow."""
    for t in (20 * MINUTE, *d.arrivals(1 / DAY)):
        yield Event(t, "coordinator", "coordinator", 10.0, HOUR)
        yield Event(t + MINUTE, d.device(), "sick", d.random.choice(HOGS), HOUR)


def during_change(d: Draw) -> Iterator[Event]:
    """A second device, if there is one, gets slow while the layout changes because of a first one; twice a day."""
    for t in (25 * MINUTE, *d.arrivals(2 / DAY)):
        first, *others = d.random.sample(range(d.nodes * d.devices), min(2, d.nodes * d.devices))
        yield Event(t, _device(first, d.devices), "sick", d.random.choice(HOGS), HOUR)
        for second in others:
            yield Event(t, _device(second, d.devices), "armed", d.random.choice(HOGS), HOUR)


def _device(number: int, devices: int) -> str:
    return f"n{number // devices}/{number % devices}"


def lost(d: Draw) -> Iterator[Event]:
    """A device by its MTBF; each fourth loss takes the whole node."""
    for number, t in enumerate(d.arrivals(d.nodes * d.devices / MTBF)):
        yield Event(t, d.node() if number % 4 == 3 else d.device(), "lost", 1.0, d.lasting(REPAIR))


KINDS: dict[str, tuple[Callable[[Draw], Iterator[Event]], ...]] = {
    "contention": (contention,), "thermal": (thermal,), "sick": (sick,), "node": (whole_node,), "bandwidth": (bandwidth,),
    "congestion": (congestion,), "flapping": (flapping,), "ramp": (ramp,), "two": (two_at_once,),
    "coordinator": (coordinator,), "change": (during_change,), "lost": (lost,), "quiet": (drift, pauses, long),
    "all": (
        contention, thermal, sick, whole_node, bandwidth, congestion, drift, pauses, long, flapping, ramp, two_at_once,
        coordinator, during_change, lost,
    ),
}  # fmt: skip
"""By the name that `--generate` takes. `quiet` is the false-positive set; the others but `all` have nothing but their kind."""


def generate(kind: str, nodes: int, devices: int, seconds: float, seed: int) -> Trace:
    """The trace of a kind of `KINDS`. Equal arguments give equal bytes. Raises Refused: no such kind."""
    if kind not in KINDS:
        raise Refused("BadValue", f"--generate is {kind!r}; use one of {', '.join(KINDS)}")
    drawn = (e for draw in KINDS[kind] for e in draw(Draw(nodes, devices, seconds, seed, draw.__name__)))
    inside = sorted((e for e in drawn if e.t < seconds), key=lambda e: (e.t, e.component, e.kind))
    return Trace(nodes, devices, seconds, seed, tuple(_apart(inside)))


def _apart(events: Iterable[Event]) -> Iterator[Event]:
    """Without those that begin while one of their kind lasts on their component."""
    lasting: dict[tuple[str, str], Event] = {}
    for event in events:
        other = lasting.get((event.component, event.kind))
        if other is None or not overlap(other, event):
            lasting[event.component, event.kind] = event
            yield event
