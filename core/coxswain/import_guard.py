"""Importing a library without what it can do without and we never use: every start of a service waits for its imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_imports(*modules: str) -> Iterator[None]:
    """Inside, these modules count as not installed, unless something has imported them before; afterwards they do not.

    For imports that a library guards by `except ImportError`. None in sys.modules is the documented way to say so.
    """
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # typeshed knows no None here
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
