"""Dates of pods by the operator's own clock: that of the API server, which writes them, may be minutes off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from coxswain_operator.clock import SLEW
from coxswain_operator.views import PodView

AHEAD_SECONDS = 5.0  # clocks that are nearer to one another are together: of thousands of pods nothing must be kept
FORGOTTEN_SECONDS = 3600.0  # a pod that no pass has seen for that long is gone


@dataclass(frozen=True, slots=True)
class _Sighting:
    last: float  # when a pass last saw it
    lead: float = 0.0
    grace_ends: float = float("inf")


_NONE = _Sighting(0.0)


class Sightings:
    """Counts from when this process first saw what a date stands for.

    A new operator counts again from the beginning, so a deletion is late by one more grace period at most. Nothing is kept of a
    pod that is not being deleted and has no date far in the future.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Sighting] = {}  # by the pod's uid

    def dated(self, pods: Iterable[PodView], now: float) -> tuple[PodView, ...]:
        """The same pods; those that need it with `lead`, `grace_ends` and when they were scheduled by this clock."""
        found = tuple(self._dated(p, now) for p in pods)
        self._known = {uid: seen for uid, seen in self._known.items() if now - seen.last < FORGOTTEN_SECONDS}
        return found

    def _dated(self, pod: PodView, now: float) -> PodView:
        ahead = max(pod.created, pod.scheduled) - now if pod.phase == "Pending" else 0.0
        if ahead < AHEAD_SECONDS and not pod.deleting and pod.uid not in self._known:
            return pod
        before = self._known.get(pod.uid, _NONE)
        ends = min(before.grace_ends, _end(pod, now)) if pod.deleting else before.grace_ends
        seen = self._known[pod.uid] = _Sighting(now, max(before.lead, ahead), ends)
        ends = seen.grace_ends if pod.deleting else 0.0
        return replace(pod, lead=seen.lead, scheduled=max(0.0, pod.scheduled - seen.lead), grace_ends=ends)


def _end(pod: PodView, now: float) -> float:
    """Of a clock that is being corrected a second may be a tenth shorter. A pod that is deleted again may get less."""
    return now + (1 + SLEW) * pod.grace
