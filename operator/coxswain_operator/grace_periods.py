"""When the grace periods of deleted pods end, by the operator's own clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coxswain_operator.clock import SLEW
from coxswain_operator.views import PodView

FORGOTTEN_SECONDS = 3600.0  # a pod that no pass has seen for that long is gone


class GracePeriods:
    """Counts each from when this process first saw the deletion: the API server's clock may be minutes off.

    A new operator counts again from the beginning, so a deletion is late by one more grace period at most.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # by the pod's uid: its end, and when it was last seen

    def dated(self, pods: Iterable[PodView], now: float) -> tuple[PodView, ...]:
        """The same pods; those that are being deleted with `grace_ends`. One that is deleted again may get less."""
        found = tuple(replace(p, grace_ends=self._end(p, now)) if p.deleting else p for p in pods)
        self._known |= {p.uid: (p.grace_ends, now) for p in found if p.deleting}
        self._known = {uid: known for uid, known in self._known.items() if now - known[1] < FORGOTTEN_SECONDS}
        return found

    def _end(self, pod: PodView, now: float) -> float:
        """Of a clock that is being corrected a second may be a tenth shorter."""
        end = now + (1 + SLEW) * pod.grace
        return min(end, self._known[pod.uid][0]) if pod.uid in self._known else end
