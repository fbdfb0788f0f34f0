"""Sources of the Go modules that tools are built from: manifests and settings of theirs are read there."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.cluster.process import REPOSITORY, binary

_TOOLS = REPOSITORY / "e2e" / "tools"
_MODULES = REPOSITORY / ".cache" / "go" / "path" / "pkg" / "mod"


def version_of(tool: str, module: str) -> str:
    """As pinned by the tool's own go.mod."""
    pins = (_TOOLS / tool / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", pins, re.MULTILINE)
    if found is None:
        raise ValueError(f"e2e/tools/{tool}/go.mod pins no {module}: add a require line")
    return found[1]


def folder_of(tool: str, module: str) -> Path:
    """The module's source, there since the tool was built; raises FileNotFoundError when it was
    removed since.
    """
    binary(tool)
    folder = _MODULES / f"{module}@{version_of(tool, module)}"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is gone: remove .cache/bin/{tool}, then `python -m e2e.tools.build {tool}` fetches it again"
        )
    return folder
