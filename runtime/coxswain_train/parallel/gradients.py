"""A step's gradients on their way to owners, bucket by bucket, beside the rest of the last backward.

A gradient exists once: in the parameter's `grad`, or as an fp32 sum where parameters are narrower. A bucket leaves as
soon as the last backward has made all its gradients, which are then freed. Where no other rank holds a parameter, its
gradient is added up in the result itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from coxswain.errors import Refused
from coxswain_train.parallel.flights import IN_FLIGHT, Flight, Reduction, in_units, put, take, to_owners
from coxswain_train.parallel.routes import Route


class Gradients:
    """`sole`: where the gradient of each parameter that only this rank holds begins in the owned buffer. `in_parts`: parameters
    whose gradient one backward makes in several parts, so that buckets from theirs on leave behind the last backward."""

    def __init__(
        self, weights: Mapping[str, nn.Parameter], routes: list[Route], sole: Mapping[str, int], size: int,
        wide: torch.dtype, reduction: Reduction, in_parts: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._weights, self._routes, self._sole, self._size = weights, routes, sole, size
        self._wide, self._reduction, self._in_parts = wide, reduction, in_parts
        # Around buckets that leave within a backward.
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        last = {name: number for number, route in enumerate(routes) for name in route.names}
        self._frees = [[name for name in route.names if last[name] == number] for number, route in enumerate(routes)]
        self._sent = frozenset(last)
        for name, weight in weights.items():
            hook = partial(_call, WeakMethod(self._produced), name)
            weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._forget()

    def _forget(self) -> None:
        self._sums: dict[str, Tensor] = {}  # where `grad` is too narrow for a sum, or not the place for it
        self._total: Tensor | None = None
        self._flights: deque[tuple[Route, Flight]] = deque()
        self._landed: list[tuple[Route, Tensor]] = []
        self._departed = 0  # routes whose flights have begun
        self._missing: set[str] | None = None  # names still to come in the last backward

    def expect_last(self) -> None:
        """Says that the next backward is the step's last one, so buckets leave while it runs."""
        self._missing = set(self._weights)

    def accumulate(self) -> None:
        """After a backward: moves what `grad` cannot hold into sums."""
        for name in self._weights:
            self._fold(name)

    def reduce(self) -> Tensor:
        """The step's gradient of the owned boxes, summed in the order of ranks. Forgets all gradients."""
        self.accumulate()
        while self._departed < len(self._routes) or self._flights:
            while self._room():
                self._depart()
            self._land()
        total = self._complete()
        self._forget()
        for weight in self._weights.values():
            weight.grad = None
        return total

    def _produced(self, name: str) -> None:
        """Runs within each backward, once a parameter, or once a part."""
        self._fold(name)
        if self._missing is None or name in self._in_parts:
            return
        if any(name in route.names for route in self._routes[: self._departed]):
            raise RuntimeError(f"{name}: a second gradient in the step's last backward, after its bucket has left")
        self._missing.discard(name)
        with self.aside():
            self._progress()

    def _progress(self) -> None:
        """Begins what is complete, ends what has arrived, and never waits: peers may need this backward to go on.

        In the order of `reduce`, whatever has arrived: rows and columns are two communicators, and NCCL may hang where
        ranks begin on them in different orders.
        """
        assert self._missing is not None
        while self._departed < len(self._routes) or self._flights:
            if self._room():
                if any(name in self._missing for name in self._routes[self._departed].names):
                    return
                self._depart()
            elif self._flights[0][1].arrived():
                self._land()
            else:
                return

    def _room(self) -> bool:
        """Whether a bucket may leave before anything lands."""
        return len(self._flights) < IN_FLIGHT and self._departed < len(self._routes)

    def _fold(self, name: str) -> None:
        weight = self._weights[name]
        gradient, place = weight.grad, self._sole.get(name)
        if gradient is not None and gradient.is_sparse:
            raise Refused(
                "BadModel", f"{name} has a sparse gradient; give dense ones, such as by sparse=False of its Embedding"
            )
        if gradient is None or (name in self._sent and weight.dtype == self._wide):
            return
        if name in self._sums:
            self._sums[name] += gradient
        elif place is not None:
            self._sums[name] = self._whole()[place : place + weight.numel()].view(weight.shape).copy_(gradient)
        elif name in self._sent:
            self._sums[name] = gradient.to(self._wide)
        weight.grad = None

    def _depart(self) -> None:
        """Packs the next bucket and begins its exchange."""
        route = self._routes[self._departed]
        packed = next(iter(self._weights.values())).new_empty(route.packed, dtype=self._wide)
        rows = in_units(packed, route.unit)
        for load in route.loads:
            gradient = self._sums.get(load.name, self._weights[load.name].grad)
            values = None if gradient is None else take(in_units(gradient.reshape(-1), route.unit), load.held)
            put(rows, load.packed, values)
        for name in self._frees[self._departed]:
            self._sums.pop(name, None)
            self._weights[name].grad = None
        self._departed += 1
        self._flights.append((route, Flight(self._reduction, to_owners(route), packed)))

    def _land(self) -> None:
        """Waits for the next hop of the oldest flight."""
        route, flight = self._flights[0]
        if flight.advance():
            self._flights.popleft()
            self._landed.append((route, flight.buffer))

    def _whole(self) -> Tensor:
        if self._total is None:
            self._total = next(iter(self._weights.values())).new_empty(self._size, dtype=self._wide)
        return self._total

    def _complete(self) -> Tensor:
        """Puts what has arrived into the owned buffer."""
        total = self._whole()
        for name in self._sole.keys() - self._sums.keys():
            total[self._sole[name] :][: self._weights[name].numel()] = 0.0
        while self._landed:
            route, values = self._landed.pop()
            for own in route.owned:
                total[own.state : own.state + own.stop - own.start] = values[own.start : own.stop]
        return total


def _call(method: WeakMethod[Callable[[str], None]], name: str, _: Tensor) -> None:
    """Weak: the collector does not see what a weight's hook holds, and would never free a world whose hooks hold its weights."""
    if (alive := method()) is not None:
        alive(name)
