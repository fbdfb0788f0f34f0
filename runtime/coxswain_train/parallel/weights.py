"""New weights on their way from owners to all holders, bucket by bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor, nn

from coxswain_train.parallel.flights import IN_FLIGHT, Flight, Reduction, in_units, put, take, to_holders
from coxswain_train.parallel.routes import Route
from coxswain_train.parallel.state import State


class WeightSpreader:
    """`sole`: where each parameter that only this rank holds begins in the owned buffer."""

    def __init__(
        self, weights: Mapping[str, nn.Parameter], routes: list[Route], sole: Mapping[str, int], reduction: Reduction
    ) -> None:
        self._weights, self._routes, self._sole, self._reduction = weights, routes, sole, reduction

    def spread(self, owned: State) -> None:
        """Copies the master parameters of all owners into the parameters."""
        for name, start in self._sole.items():
            weight = self._weights[name]
            weight.copy_(owned.part("parameter", start, start + weight.numel()).view(weight.shape))
        flights: deque[tuple[Route, Flight]] = deque()
        for route in self._routes:
            if len(flights) == IN_FLIGHT:
                self._finish(*flights.popleft())
            flights.append((route, Flight(self._reduction, to_holders(route), self._packed(route, owned))))
        while flights:
            self._finish(*flights.popleft())

    def _packed(self, route: Route, owned: State) -> Tensor:
        """This rank's own part of the bucket, in the model's dtype."""
        packed = next(iter(self._weights.values())).new_empty(route.owned[-1].stop if route.owned else 0)
        for own in route.owned:
            packed[own.start : own.stop] = owned.part("parameter", own.state, own.state + own.stop - own.start)
        return packed

    def _finish(self, route: Route, flight: Flight) -> None:
        while not flight.advance():
            pass
        rows = in_units(flight.buffer, route.unit)
        for load in route.loads:
            weight = self._weights[load.name]
            flat = weight.reshape(-1)  # a copy where a model of the user's own has its elements in another order
            put(in_units(flat, route.unit), load.held, take(rows, load.packed))
            if not weight.is_contiguous():
                weight.copy_(flat.view(weight.shape))
