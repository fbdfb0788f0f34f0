"""A bucket under way: its hops one after the other, each an `all_to_all` that the caller need not wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from coxswain_train.parallel.grid import Grid
from coxswain_train.parallel.routes import Arrival, Hop, Route, Where

IN_FLIGHT = 2  # buckets; each holds what it sends and what it receives


class Work(Protocol):
    """As in torch.distributed."""

    def wait(self) -> object: ...

    def is_completed(self) -> bool: ...


class Reduction(Protocol):
    """The reductions of a step, over all ranks."""

    @property
    def grid(self) -> Grid:
        """The rows and columns of ranks among which buckets are exchanged."""
        ...

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Work:
        """Begins to exchange parts of flat buffers with the rank's row (hop 0) or column (hop 1) of the grid of ranks.

        `receives` and `sends`: elements from and to each peer, by rank. Both buffers must stay until the work is done.
        """
        ...

    def scalars(self, mine: list[float]) -> list[list[float]]:
        """Some fp64 numbers of every rank: the one small collective of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Leg:
    """One hop with what becomes of the buffer before and after it."""

    hop: int
    sends: list[int]  # elements, by peer
    receives: list[int]
    before: Callable[[Tensor], Tensor]
    after: Callable[[Tensor], Tensor]


class Flight:
    """Takes a buffer over its legs. `buffer` is the result once `advance` has returned True."""

    def __init__(self, reduction: Reduction, legs: Iterator[Leg], buffer: Tensor) -> None:
        self._reduction, self._legs, self.buffer = reduction, legs, buffer
        self._begin(next(legs))

    def _begin(self, leg: Leg) -> None:
        self._leg, self._work = leg, None
        self._sent = received = leg.before(self.buffer)
        if len(leg.sends) > 1:
            received = self._sent.new_empty(sum(leg.receives))
            self._work = self._reduction.all_to_all(received, self._sent, leg.receives, leg.sends, leg.hop)
        self.buffer = received

    def arrived(self) -> bool:
        """Whether `advance` would not wait."""
        return self._work is None or self._work.is_completed()

    def advance(self) -> bool:
        """Waits for the hop under way and begins the next one. True: there is none."""
        if self._work is not None:
            self._work.wait()
        self.buffer = self._leg.after(self.buffer)
        following = next(self._legs, None)
        if following is not None:
            self._begin(following)
        return following is None


def to_owners(route: Route) -> Iterator[Leg]:
    """Legs of a bucket's gradients: each hop adds up what arrives, in the order of ranks."""
    for number, hop in enumerate(route.hops):
        sends, receives = _elements(hop.sends, route), _elements(hop.receives, route)
        yield Leg(number, sends, receives, _same, partial(_add_up, hop=hop, unit=route.unit))


def to_holders(route: Route) -> Iterator[Leg]:
    """Legs of a bucket's weights: the same ways back, each hop sends what it has to all that need it."""
    for number, hop in reversed(list(enumerate(route.hops))):
        sends, receives = _elements(hop.receives, route), _elements(hop.sends, route)
        yield Leg(number, sends, receives, partial(_spread, hop=hop, unit=route.unit), _same)


def _elements(units: list[int], route: Route) -> list[int]:
    return [each * route.unit for each in units]


def _same(buffer: Tensor) -> Tensor:
    return buffer


def _add_up(received: Tensor, hop: Hop, unit: int) -> Tensor:
    total = received.new_empty(hop.units, unit)
    for part, arrival in zip(torch.split(in_units(received, unit), hop.receives), hop.arrivals, strict=True):
        _add(total, part, arrival)
    return total.view(-1)


def _add(total: Tensor, part: Tensor, arrival: Arrival) -> None:
    if arrival.first is not None:
        put(total, arrival.first[0], take(part, arrival.first[1]))
    if arrival.more is not None:
        into, of = arrival.more
        if isinstance(into, slice):
            total[into] += take(part, of)
        else:
            total.index_add_(0, into, take(part, of))  # each place once, so in one order on any device


def _spread(buffer: Tensor, hop: Hop, unit: int) -> Tensor:
    rows = in_units(buffer, unit)
    return torch.cat([take(rows, arrival.into) for arrival in hop.arrivals]).view(-1)


def in_units(flat: Tensor, unit: int) -> Tensor:
    return flat.view(flat.numel() // unit, unit)


def take(rows: Tensor, where: Where) -> Tensor:
    return rows[where] if isinstance(where, slice) else rows.index_select(0, where)


def put(rows: Tensor, where: Where, values: Tensor | None) -> None:
    """None: zeros."""
    if values is None:
        rows[where] = 0.0
    elif isinstance(where, slice):
        rows[where] = values
    else:
        rows.index_copy_(0, where, values)
