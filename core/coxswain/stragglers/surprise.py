"""Whether a step took so much longer than planned that its ranks probe behind it, while a device that is slow still is. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from coxswain.stragglers.values import Thresholds

REMEMBERED = 16  # steps
LEARN = 3  # steps until it is known how long steps take beside their plans


class StepLengths:
    """Of one rank. All ranks of a world wait for each other, so all are surprised by the same steps."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._t = thresholds or Thresholds()
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)

    def surprises(self, seconds: float, planned: float) -> bool:
        """Whether this step lost more than a probe takes by being longer than usual beside its plan. `planned`: 0 is unknown."""
        if planned <= 0:
            return False
        usual = median(self._ratios) * planned if len(self._ratios) >= LEARN else seconds
        self._ratios.append(seconds / planned)
        return seconds >= self._t.enter * usual and seconds - usual >= self._t.dear
