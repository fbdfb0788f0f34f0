"""The pytest plugin of a host process (`-p tests.mutants.host`): carries out an order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import msgspec
import pytest

from tests.mutants.kept import end_with_parent
from tests.mutants.measuring import Measuring
from tests.mutants.orders import ORDER, Order
from tests.mutants.trying import Trying

PROFILE = "mutants"
hypothesis.settings.register_profile(
    PROFILE,
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=list(hypothesis.HealthCheck),
)


_ORDER = pytest.StashKey[Order]()


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    order = msgspec.json.decode(Path(os.environ[ORDER]).read_bytes(), type=Order)
    end_with_parent(order.driver, signal.SIGKILL)
    early_config.stash[_ORDER] = order
    early_config.pluginmanager.register(Measuring(order) if order.work == "measure" else Trying(order))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = set(config.stash[_ORDER].without)
    items[:] = [item for item in items if left_out.isdisjoint(getattr(item, "fixturenames", ()))]
