"""How soon a speed reaches a plan: how far plans are committed ahead, and when suspects count before they have probed. Pure."""

from __future__ import annotations

PLANNED = 2
"""Steps behind the one that runs that have plans: data of the first is fetched, that of the second is put together."""

LONG = 1.0
"""Seconds of a step from which the last of these plans is made only once the step before the one that runs is closed.
The reports of all ranks, a plan and its delivery take a small part of such a step."""


def waits_for_reports(step_seconds: float) -> bool:
    """Whether the last plan ahead waits for what the step before the one that runs says of speeds."""
    return step_seconds >= LONG


def steps_until_placed(step_seconds: float) -> int:
    """Steps after the one that shows a speed that are still placed without it."""
    return PLANNED if waits_for_reports(step_seconds) else PLANNED + 1


def heeds_suspects(step_seconds: float, accelerators: bool) -> bool:
    """Whether plans go by a suspect's speed before its probe has answered: they cost nothing, and answers take two steps.

    Not on CPU, where other processes make steps slow, nor in short steps, which a pause makes twice as long.
    """
    return accelerators and step_seconds >= LONG
