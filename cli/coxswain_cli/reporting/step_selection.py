"""Which steps get a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coxswain.errors import Refused
from coxswain_cli.reporting.model import RecordedStep

Reasons = tuple[tuple[int, str], ...]


def chosen_steps(steps: Sequence[RecordedStep], rings: Mapping[int, int], wanted: tuple[int, ...] = ()) -> Reasons:
    """(step, why): those wanted, else the first, the slowest, the one with the longest ring, and the last.

    `rings` has the longest ring's degree of every step with timings. Raises Refused for a wanted step without.
    """
    missing = [s for s in wanted if s not in rings]
    if missing:
        known = f"{min(rings)} to {max(rings)}" if rings else "none"
        raise Refused("NoSuchStep", f"--steps {missing[0]}: no timings of this step; recorded are {known}")
    known_steps = [s for s in steps if s.step in rings]
    if wanted or not known_steps:
        return tuple((s, "asked for") for s in wanted)
    later = known_steps[1:] or known_steps  # the first step pays for warming up: it is slow for reasons of its own
    slowest = max(later, key=lambda s: s.seconds).step
    ring = max(known_steps, key=lambda s: (rings[s.step], -s.step)).step
    first, last = known_steps[0].step, known_steps[-1].step
    return _merged(((first, "first"), (slowest, "slowest after the first"), (ring, "longest ring"), (last, "last")))


def _merged(picks: Reasons) -> Reasons:
    """One entry a step, its reasons joined, in step order."""
    reasons: dict[int, list[str]] = {}
    for step, why in picks:
        reasons.setdefault(step, []).append(why)
    return tuple((step, ", ".join(reasons[step])) for step in sorted(reasons))
