"""The environment that containers inherit. They run in the work directory, from which a relative path would name another file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_LISTS = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH")
_PATHS = (
    "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip


def seen_from_anywhere(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The same variables, with the paths that are relative to `folder` in full."""
    lists = {name: environment[name].split(os.pathsep) for name in _LISTS if name in environment}
    paths = {name: [environment[name]] for name in _PATHS if name in environment}
    return {
        **environment,
        **{n: os.pathsep.join(_full(p, folder) for p in each) for n, each in (lists | paths).items()},
    }


def _full(path: str, folder: Path) -> str:
    """Empty entries and those of a home folder stay as they are."""
    return path if not path or path.startswith(("/", "~")) else str(folder / path)
