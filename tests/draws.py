"""How many examples a test draws: few, always the same, or many new ones."""

import random

from hypothesis import settings


def draws(few: int, many: int) -> int:
    """For `max_examples` of a test whose examples take long: `few` in `make test`, `many` in `make test-slow`.

    conftest.py and the command line have chosen the profile before a test module is imported.
    """
    return few if settings.default.derandomize else many


def drawn_below(stop: int) -> int:
    """A number below `stop`: 0 in `make test`, another in each run of `make test-slow`."""
    return 0 if settings.default.derandomize else random.SystemRandom().randrange(stop)
