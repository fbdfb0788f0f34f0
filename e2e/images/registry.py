"""Where this machine gets Python packages from, as the two build secrets that the Dockerfile takes."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.images.buildah import run

# pip's setting -> the variable that says the same to uv; proxies go along as they are.
INDEXES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@contextmanager
def secrets(folder: Path) -> Iterator[list[str]]:
    """Arguments for buildah.

    The file behind them can be read by its owner only, and is gone afterwards.
    """
    settings = pip_settings(run([sys.executable, "-m", "pip", "config", "list"]))
    path = folder / "registry"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    try:
        path.write_text(assignments(settings, os.environ))
        bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or os.devnull
        yield ["--secret", f"id=registry,src={path}", "--secret", f"id=certificates,src={bundle}"]
    finally:
        path.unlink(missing_ok=True)


def pip_settings(listed: str) -> dict[str, str]:
    """Settings of `pip config list` without their sections; what the environment says comes last
    there, as in pip.
    """
    found = re.findall(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    return dict(sorted(found, key=lambda item: item[0]))


def assignments(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The secret `registry`: lines for a shell."""
    values = {f"PIP_{name.upper().replace('-', '_')}": settings[name] for name in INDEXES if name in settings}
    values |= {variable: settings[name] for name, variable in INDEXES.items() if name in settings}
    values |= {name: value for name, value in environment.items() if name in PROXIES or name in INDEXES.values()}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
