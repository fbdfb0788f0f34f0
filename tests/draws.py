"""How many examples a property test draws: few, always the same, or many new ones."""

from hypothesis import settings


def draws(few: int, many: int) -> int:
    """For `max_examples` of a test whose examples take long: `few` in `make test`, `many` in `make test-slow`.

    conftest.py and the command line have chosen the profile before a test module is imported.
    """
    return few if settings.default.derandomize else many
