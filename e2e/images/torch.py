"""Torch and what it needs, in a folder of its own that the trainers of quick tests mount read-only.

An image with torch is 5 GB, most of it for accelerators that a test has none of. uv links the files
to those in its cache where both lie on one file system.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

from e2e.images.build import FOLDER
from e2e.images.buildah import run
from e2e.images.recipe import REPOSITORY


def torch_folder(python: str, folder: Path = FOLDER) -> Path:
    """The folder, built again (20 s) if the pinned versions changed. `python`: the image's version."""
    constraints = REPOSITORY / "constraints.txt"
    mark = hashlib.sha256(constraints.read_bytes() + python.encode()).hexdigest()[:12]
    target = folder / f"torch-{mark}"
    with (folder / ".torch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _install(folder, target, constraints, python)
    return target


def _install(folder: Path, target: Path, constraints: Path, python: str) -> None:
    for old in folder.glob("torch-*"):
        shutil.rmtree(old)
    partial = folder / "torch-partial"
    command: list[str | Path] = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--target", partial]
    run([*command, "--python-version", python, "--constraint", constraints, "--compile-bytecode", "torch"])
    partial.rename(target)
