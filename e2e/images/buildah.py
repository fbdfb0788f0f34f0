"""buildah with a storage of its own: nothing outside one folder changes, and what a killed build
left is removed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.process import Argument, end_with_parent


class BuildFailed(Exception):
    """A tool of the builder failed; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah over `folder`. Every call raises BuildFailed with the end of its output."""

    folder: Path

    def run(self, *arguments: Argument) -> str:
        scratch = self.folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        storage: list[Argument] = ["--root", self.folder / "storage", "--runroot", self.folder / "run"]
        return run(["buildah", *storage, "--storage-driver", driver(self.folder), *arguments], {"TMPDIR": str(scratch)})

    def tidy(self) -> None:
        """Removes working containers with their mounts, and layers that no named image uses."""
        self.run("rm", "--all")
        self.run("rmi", "--prune")

    def images(self) -> dict[str, str]:
        """Names of the images, each with its size without compression, for people."""
        listed = json.loads(self.run("images", "--json") or "null") or []
        return {name: image["size"] for image in listed for name in image["names"] or ()}


def driver(folder: Path) -> str:
    """overlay copies nothing, where the kernel has it and the folder does not lie on another
    overlay; vfs works anywhere.
    """
    known = Path("/proc/filesystems").read_text().split()
    kind = run(["stat", "--file-system", "--format", "%T", folder]).strip()
    return "overlay" if "overlay" in known and kind != "overlayfs" else "vfs"


def run(command: Sequence[Argument], extra: dict[str, str] | None = None) -> str:
    """Standard output of a command that ends with this process. Raises BuildFailed."""
    result = subprocess.run(
        command, env={**os.environ, **(extra or {})}, text=True, stdin=subprocess.DEVNULL, capture_output=True,
        preexec_fn=end_with_parent,
    )  # fmt: skip
    if result.returncode:
        words = "\n".join((result.stdout + result.stderr).splitlines()[-40:])
        raise BuildFailed(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{words}")
    return result.stdout
