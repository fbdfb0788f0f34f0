"""What every test needs, also those beside the tools under bench/ and e2e/."""

import asyncio
import gc
import inspect
import signal

import pytest


def pytest_configure():
    """What a shell runs in its background ignores SIGINT, and below nohup SIGHUP; so would every process that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # a handler ignores it here too, and no program inherits one
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Of the million objects of all imports none is to be collected, neither meanwhile nor in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_stray_event_loop(request):
    """looptime asks for the current loop in synchronous tests too, and the policy would make one that stays open."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        asyncio.set_event_loop(None)
