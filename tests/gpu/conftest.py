"""These tests need a CUDA device. Without one all of them are skipped, and only for that reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)
