"""How fast steps follow each other, by the steps' own times: messages may arrive late and in a burst. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coxswain.wire import StepLine


def step_seconds(recent: Sequence[StepLine]) -> float:
    """Wall time a step in the newest world, pauses between steps included where two steps are known; 0: unknown."""
    lines = _of_newest_world(recent)
    if len(lines) < 2:
        return sum(line.seconds for line in lines)
    span = lines[-1].time - lines[0].time
    return max(span, sum(line.seconds for line in lines[1:])) / (len(lines) - 1)  # steps do not overlap


def tokens_per_second(recent: Sequence[StepLine]) -> float:
    """0: unknown."""
    lines, seconds = _of_newest_world(recent), step_seconds(recent)
    return sum(line.tokens for line in lines) / len(lines) / seconds if seconds else 0.0


def _of_newest_world(recent: Sequence[StepLine]) -> list[StepLine]:
    """Clocks of several worlds may differ."""
    return [line for line in recent if line.worldGeneration == recent[-1].worldGeneration]
