"""How long to pause before what has failed is tried again."""

from __future__ import annotations

from coxswain.errors import Retryable

_MOST_DOUBLINGS = 64  # beyond any limit; a float overflows at 1,024, which a day of failures reaches


def doubled(failures: int, first: float, longest: float) -> float:
    """`first` seconds after the first of so many failures in a row; then twice as long each time, up to `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def asked_by(error: Exception) -> float:
    """Seconds for which a service asks not to be asked again; 0: it does not ask, or the error is another."""
    return error.after if isinstance(error, Retryable) else 0.0
