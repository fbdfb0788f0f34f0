"""Importing a library without what it would import and we never use: every start of a service waits for its imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Inside, these modules are empty, unless something has imported them before; afterwards they can be imported again."""
    emptied = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in emptied})
    try:
        yield
    finally:
        for name in emptied:
            del sys.modules[name]
