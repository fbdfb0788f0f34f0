"""What every test needs, also those beside the tools under bench/ and e2e/."""

import asyncio
import inspect

import pytest


@pytest.fixture(autouse=True)
def no_stray_event_loop(request):
    """looptime asks for the current loop in synchronous tests too, and the policy would make one that nobody closes."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        asyncio.set_event_loop(None)
