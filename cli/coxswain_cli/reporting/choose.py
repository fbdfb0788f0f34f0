"""Which steps get a picture."""

from __future__ import annotations

from coxswain_cli.reporting.record import Run


def chosen_steps(run: Run, wanted: tuple[int, ...] = ()) -> tuple[tuple[int, str], ...]:
    """(step, why): those asked for, else the first, the slowest, the one with the longest ring, and the last."""
    known = [s for s in run.steps if s.step in run.timings]
    if wanted:
        return tuple((s, "asked for") for s in wanted if s in run.timings)
    if not known:
        return ()
    later = known[1:] or known  # the first step pays for warming up: it is slow for reasons of its own
    slowest = max(later, key=lambda s: s.seconds).step
    ring = max(known, key=lambda s: (run.timings[s.step].longest_ring, -s.step)).step
    picks = (
        (known[0].step, "first"),
        (slowest, "slowest after the first"),
        (ring, "longest ring"),
        (known[-1].step, "last"),
    )
    return _merged(picks)


def _merged(picks: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
    """One entry a step, its reasons joined, in step order."""
    reasons: dict[int, list[str]] = {}
    for step, why in picks:
        reasons.setdefault(step, []).append(why)
    return tuple((step, ", ".join(reasons[step])) for step in sorted(reasons))
