"""Imports a library without its optional dependencies: a service's start waits for imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def block_imports(*modules: str) -> Iterator[None]:
    """Hides modules inside the context, unless they are imported already.

    For imports that a library guards by `except ImportError`. None in sys.modules is the documented way to say so.
    """
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # typeshed knows no None here
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def empty_modules(*modules: str) -> Iterator[None]:
    """Puts empty modules in the place of modules inside the context, unless those are imported already.

    For imports of a library that nothing guards, of parts that are not used here.
    """
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
