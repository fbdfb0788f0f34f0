"""When each task of a plan begins: what the simulation found, read again from a plan that is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from coxswain.plan.values import Task


def starts(tasks: Iterable[Task]) -> dict[int, float]:
    """Seconds since the step began, by the task's index.

    A task begins once all its replicas are free; one of a later wave once all tasks of the waves before have ended.
    """
    free: dict[int, float] = defaultdict(float)
    found, wave, barrier, latest = dict[int, float](), 0, 0.0, 0.0
    for task in sorted(tasks, key=lambda t: t.index):
        if (task.wave or 0) != wave:
            wave, barrier = task.wave or 0, latest
        start = max([barrier, *(free[r] for r in task.replicas)])
        free.update(dict.fromkeys(task.replicas, start + task.seconds))
        found[task.index], latest = start, max(latest, start + task.seconds)
    return found
