"""What every unit test needs."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """No power fails here. Simulated crashes write tens of thousands of objects, and would wait for the disk most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
