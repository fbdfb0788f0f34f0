"""Numbers for people: axis ticks, short forms, smoothing and thinning of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

TINY = 1e-9  # relative: smaller differences than this are noise, and one value needs an axis too
LATEST = 4e9  # seconds since 1970 (the year 2096): what lies beyond is no time of a run
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Round values that cover [low, high]: the first is at or below low, the last at or above high."""
    if high - low <= TINY * max(abs(low), abs(high), TINY):
        high = low + (abs(low) if abs(low) > TINY else 1.0)
    step = _round_step((high - low) / max(about - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def whole_ticks(low: int, high: int, about: int = 5) -> tuple[int, ...]:
    """Round integers within [low, high], for axes that count."""
    step = max(1, round(_round_step((high - low) / max(about - 1, 1) or 1)))
    return tuple(range(-(-low // step) * step, high + 1, step))


def ratio(part: float, whole: float) -> float | None:
    """None where the whole is nothing, or so little that what follows from it says nothing."""
    return part / whole if abs(whole) >= TINY else None


def short(value: float) -> str:
    """Three digits and a unit: 12345 -> 12.3k, 0.01234 -> 0.0123."""
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """340 ms, 12.3 s, 2 min 05 s, 3 h 10 min."""
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_of(time: float | str | None) -> float:
    """Seconds since 1970; 0 when it is no time."""
    try:
        value = datetime.fromisoformat(time).timestamp() if isinstance(time, str) else float(time or 0)
    except (ValueError, OverflowError):
        return 0.0
    return value if 0 <= value < LATEST else 0.0


def smooth(values: Sequence[float | None], reach: int) -> list[float | None]:
    """Means over `reach` neighbours on both sides, fewer at the ends: no lag. Gaps stay gaps."""
    return [None if v is None else _mean(_around(values, i, reach)) for i, v in enumerate(values)]


def thin(values: Sequence[float | None], limit: int) -> list[float | None]:
    """At most `limit` values, each the mean of its neighbours' bucket; a gap where a bucket has no value."""
    if len(values) <= limit:
        return list(values)
    cuts = [len(values) * i // limit for i in range(limit + 1)]
    return [_mean(values[a:b]) for a, b in pairwise(cuts)]


def _around(values: Sequence[float | None], i: int, reach: int) -> Sequence[float | None]:
    reach = min(reach, i, len(values) - 1 - i)
    return values[i - reach : i + reach + 1]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
