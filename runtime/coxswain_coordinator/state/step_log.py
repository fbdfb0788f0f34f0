"""A line a step in the coordinator's log, and never more than one a second: a line of fast steps covers several."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from coxswain.trainer_figures import StepFigures
from coxswain.wire import StepLine

log = logging.getLogger(__name__)

LINE_SECONDS = 1.0  # between two lines: some 15 MB a day at most, 1 MB with steps of 15 s


class StepLog:
    """Collects closed steps until they are logged. `where` names a trainer's index, with its node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._logged = clock, float("-inf")
        self._lines: list[StepLine] = []
        self._trainers: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])  # compute and data wait

    def add(self, line: StepLine, figures: StepFigures) -> None:
        self._lines.append(line)
        for trainer, (compute, data_wait) in slowest_ranks(figures).items():
            self._trainers[trainer][0] += compute
            self._trainers[trainer][1] += data_wait

    def due(self) -> bool:
        return bool(self._lines) and self._clock() >= self._logged + LINE_SECONDS

    def write(self, where: Callable[[int], str]) -> None:
        """Logs what is collected."""
        if self._lines:
            log.info("%s", describe(self._lines, self._trainers, where))
            self._logged = self._clock()
            self._lines.clear()
            self._trainers.clear()


def slowest_ranks(figures: StepFigures) -> dict[int, tuple[float, float]]:
    """Compute and data wait, by trainer, of its rank that took longest for them."""
    found: dict[int, tuple[float, float]] = {}
    for (trainer, _), rank in figures.items():
        own = rank.compute, rank.data_wait
        found[trainer] = max(found.get(trainer, own), own, key=sum)
    return found


def short(seconds: float) -> str:
    """Three digits; nothing below a tenth of a millisecond."""
    return f"{round(seconds, 4):.3g}"


def describe(lines: list[StepLine], trainers: Mapping[int, list[float]], where: Callable[[int], str]) -> str:
    """The last loss; the means of a step."""
    count, first, last, seconds = len(lines), lines[0], lines[-1], sum(line.seconds for line in lines)
    tokens, idle = sum(line.tokens for line in lines), sum(line.idle_fraction * line.seconds for line in lines)
    steps = f"steps {first.step}-{last.step}" if count > 1 else f"step {last.step}"
    rate, share = (tokens / seconds, idle / seconds) if seconds else (0.0, 0.0)
    each = " each" if count > 1 else ""
    text = f"{steps}: loss {last.loss:.4f}, {rate:,.0f} tokens/s, {short(seconds / count)} s{each}, idle {share:.1%}"
    if len(trainers) < 2:
        return text
    trainer, (compute, data) = max(trainers.items(), key=lambda item: sum(item[1]))
    return f"{text}, slowest {where(trainer)}: {short(compute / count)} s compute, {short(data / count)} s data"
