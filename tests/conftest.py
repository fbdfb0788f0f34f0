"""What every test needs."""

import asyncio
import inspect

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The same examples in every run: no draw decides whether a change passes. `make test` runs with it."""

settings.register_profile("drawn", settings.get_profile("fixed"), derandomize=False, print_blob=True, database=None)
"""Other examples in every run, for `make test-slow`. What it finds becomes an `@example` of the test."""

settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def no_stray_event_loop(request):
    """looptime asks for the current loop in synchronous tests too, and the policy would make one that nobody closes."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        asyncio.set_event_loop(None)
