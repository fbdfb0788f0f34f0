"""A process that may open no more files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3 + count, hard))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(2))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def alone(check: Callable[..., None], *arguments: object) -> None:
    """Runs a test file's function in a process of its own: threads of other tests would free descriptors meanwhile."""
    name, module = check.__name__, check.__module__
    command = [sys.executable, "-c", f"from {module} import {name}; {name}(*{arguments!r})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
