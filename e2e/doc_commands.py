"""Runs commands as the pages have them: a page whose command no longer works fails a test."""

from __future__ import annotations

import os
import re
from pathlib import Path

from e2e.cluster.namespaces import run
from e2e.cluster.process import REPOSITORY, binary
from e2e.provision import Site

_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:kubectl|helm) [^`]+)`")


def command(page: str, beginning: str) -> str:
    """The one command of a page (a path below the repository) that begins so, with a comment behind
    it removed.
    """
    text = (REPOSITORY / page).read_text()
    lines = [line.split(" # ")[0].strip() for block in _BLOCK.findall(text) for line in block.splitlines()]
    found: set[str] = {line for line in (*lines, *_INLINE.findall(_BLOCK.sub("", text))) if line.startswith(beginning)}
    assert len(found) == 1, f"{page} should have one command that begins with {beginning!r}, and has {sorted(found)}"
    return found.pop()


def type_in(site: Site, line: str, deadline: float = 300) -> str:
    """Runs a line in the environment that the output of `make cluster` sets up."""
    tools = f"{binary('kubectl').parent}:{os.environ['PATH']}"
    environment = [f"KUBECONFIG={site.cluster.kubeconfig}", f"PATH={tools}", f"HOME={_home(site)}"]
    return run(["env", f"--chdir={REPOSITORY}", *environment, "bash", "-euc", line], deadline=deadline)


def _home(site: Site) -> Path:
    """Instead of the user's own folder, which Helm and kubectl would keep their caches in."""
    home = site.cluster.state.root / "home"
    home.mkdir(exist_ok=True)
    return home
