"""Which class of timeline.css a task has, and the legend of the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coxswain_cli.reporting.model import PlannedTask

COLOURS = 6
WIDEST = 64  # rings over so many replicas and more share one shade
DEGREES = tuple(2**i for i in range(WIDEST.bit_length()))  # the greatest degree of each shade; 1: packs

Look = Callable[[int], str]  # by the task's number


def by_sequence(planned: Sequence[PlannedTask]) -> Look:
    """Grey for packs, and a colour a sequence for rings in their order: the eye finds a ring again where it is measured."""
    rings = {task.task: i for i, task in enumerate(t for t in planned if t.kind == "ring")}
    return lambda task: f"b{rings[task] % COLOURS}" if task in rings else "pack"


def by_degree(planned: Sequence[PlannedTask]) -> Look:
    """One hue for packs and shades of another for rings, darker the more replicas: for plans of hundreds of rings."""
    degrees = {task.task: len(task.replicas) for task in planned}
    return lambda task: look_of(degrees.get(task, 1))


def look_of(degree: int) -> str:
    return f"d{min(WIDEST, 1 << (degree - 1).bit_length())}"


def legend(degrees: Iterable[int]) -> tuple[tuple[str, str], ...]:
    """(class, words) of the shades that these degrees have."""
    used = {look_of(degree) for degree in degrees}
    return tuple((f"d{most}", _words(most)) for most in DEGREES if f"d{most}" in used)


def _words(most: int) -> str:
    if most <= 2:
        return "pack" if most == 1 else "ring of 2"
    return f"of {most // 2 + 1} to {most}" if most < WIDEST else f"of {WIDEST // 2 + 1} and more"
