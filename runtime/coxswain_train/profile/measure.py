"""What a profile measures, and in which order: as much as fits into its seconds.

Every rank runs this with the same seconds (`Machine` gives each rank the mean of all), so all decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Protocol

from coxswain.config import ModelConfig
from coxswain.cost.fit import Measured, Step
from coxswain.cost.hardware import Point
from coxswain.cost.memory import Recompute

_LEAST_SECONDS = 0.1  # of one timing: below it clocks, throttles and schedulers count more than the device
_REPEATS = 3
_SHORTEST = 64  # tokens
_LEAST_BYTES = 2 << 20  # of a message: a smaller one says how long it takes to begin, not what gradients get


class Machine(Protocol):
    """Times of one model on this rank's device while all ranks do the same: seconds of one call, the mean of the ranks.

    `degree`: of the rings that it runs.
    """

    @property
    def ranks(self) -> int: ...
    @property
    def degree(self) -> int: ...
    def attention(self, tokens: int, calls: int) -> float:
        """Causal attention of a sequence in one layer, forward and backward."""
        ...

    def ring(self, tokens: int, calls: int) -> float:
        """Attention of a ring in one layer, forward and backward, with so many tokens on each member."""
        ...

    def exchange(self, size: int, calls: int) -> float:
        """Every rank sends so many bytes to the next one."""
        ...

    def step(self, step: Step) -> float:
        """A whole step with its reduction and update."""
        ...


@dataclass(slots=True)
class Budget:
    """Seconds left."""

    left: float

    def part(self, share: float) -> Budget:
        return Budget(self.left * share)

    def spend(self, seconds: float) -> None:
        self.left -= seconds


def measure(
    machine: Machine, model: ModelConfig, parameters: int, tokens: int, seconds: float, seed: int = 0,
    recompute: Recompute = "None",
) -> tuple[Measured, tuple[Step, ...]]:  # fmt: skip
    """The figures to fit, and steps held out of the fit. `tokens`: the most that a replica holds in a task. `recompute`: of the
    machine's steps."""
    machine.step(Step(packs=((_SHORTEST,),)))  # allocates, loads kernels
    whole = Budget(seconds)
    attention = _series(machine.attention, tokens, whole.part(0.15), model.layers)
    rings = _series(machine.ring, tokens, whole.part(0.25), model.layers / machine.degree)
    gbps = _gbps(machine, model, tokens) if machine.ranks > 1 else 0.0
    steps = _steps(machine, _fit_shapes(tokens), whole.part(0.3))
    measured = Measured(model, parameters, machine.ranks, attention, rings, gbps, steps, recompute)
    return measured, _steps(machine, _other_shapes(tokens, machine.ranks, Random(seed)), whole.part(0.3))


def _series(call: Callable[[int, int], float], most: int, budget: Budget, times: float) -> tuple[Point, ...]:
    """Points by doubling tokens, and the most, while there are seconds for one that takes four times as long.

    `times`: what is kept, of a call.
    """
    call(_SHORTEST, 1)  # loads kernels, opens connections
    points: list[Point] = []
    for tokens in _doubling(most):
        if points and 4 * points[-1][1] / times * (_REPEATS + 1) > budget.left:
            break
        seconds, spent = _timed(call, tokens)
        budget.spend(spent)
        points.append((tokens, seconds * times))
    return tuple(points)


def _doubling(most: int) -> Iterator[int]:
    tokens = _SHORTEST
    while tokens < most:
        yield tokens
        tokens *= 2
    yield most


def _timed(call: Callable[[int, int], float], size: int) -> tuple[float, float]:
    """The median seconds of a call, each timing long enough, and the seconds that all took."""
    first = call(size, 1)
    calls = math.ceil(_LEAST_SECONDS / max(first, 1e-6))
    found = [call(size, calls) for _ in range(_REPEATS)]
    return median(found), first + calls * sum(found)


def _gbps(machine: Machine, model: ModelConfig, tokens: int) -> float:
    """By messages as large as keys and values of one layer, of few tokens larger."""
    size = max(_LEAST_BYTES, 2 * 4 * model.kv_heads * model.size_of_head * tokens)
    return size / _timed(machine.exchange, size)[0] * 1e-9


def _steps(machine: Machine, shapes: Iterator[Step], budget: Budget) -> tuple[Step, ...]:
    """Each shape once, from the first again while there are seconds; medians of what each took."""
    order, taken = list(shapes), dict[Step, list[float]]()
    while budget.left > 0 and (not taken or min(map(len, taken.values())) < _REPEATS):
        for step in order:
            if budget.left <= 0 and len(taken) == len(order):
                break
            seconds = machine.step(step)
            taken.setdefault(step, []).append(seconds)
            budget.spend(seconds)
    return tuple(replace(step, seconds=median(found)) for step, found in taken.items())


def _fit_shapes(tokens: int) -> Iterator[Step]:
    """Packs, whole and in part, of long and short sequences, one and several a step: they differ in steps, tasks and tokens."""
    half, short = max(1, tokens // 2), max(1, tokens // 16)
    yield Step(packs=((tokens,),))
    yield Step(packs=((short,) * 16,))
    yield Step(packs=((half,),))
    yield Step(packs=((short,),))
    yield Step(packs=((half,), (half,), (half,)))
    yield Step(packs=((short,) * 2,) * 8)
    yield Step(packs=((short,) * 16, (half, short, short)))


def _other_shapes(tokens: int, ranks: int, draw: Random) -> Iterator[Step]:
    """Packs of a long tail of lengths, as steps have them, and rings of all ranks."""
    for count in (1, 2, 3, 1, 2, 4):
        yield Step(packs=tuple(_pack(tokens, draw) for _ in range(count)))
    for share in (0.6, 1.0) if ranks > 1 else ():
        yield Step(packs=(_pack(tokens, draw),), ring=int(tokens * ranks * share))


def _pack(tokens: int, draw: Random) -> tuple[int, ...]:
    room = draw.randint(max(1, tokens // 4), tokens)
    lengths: list[int] = []
    while room > 0:
        lengths.append(min(room, int(16 * draw.paretovariate(0.7))))
        room -= lengths[-1]
    return tuple(lengths)
