"""Libraries that few tests need and that take a second or two to import: each worker of a run collects every test."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """A module, imported where one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


transformers = Lazy("transformers")
