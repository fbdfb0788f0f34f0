"""A checkout with one file of tests, and pytest in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.children import REPOSITORY


def small_checkout(folder: Path, tests: str) -> Path:
    """What pytest needs of this checkout, without a cache."""
    plugins = [f"tests/{path.name}" for path in (REPOSITORY / "tests").iterdir() if path.is_file()]
    for name in (*plugins, "conftest.py", "pyproject.toml", "e2e/__init__.py", "e2e/tools"):
        source, target = REPOSITORY / name, folder / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    (folder / "tests" / "test_some.py").write_text(tests)
    return folder


def run_pytest(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)
