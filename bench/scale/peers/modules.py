"""What a rival ships beside its binary (definitions, webhooks), read from the Go module that it was
built from.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.process import REPOSITORY, binary

Manifest = dict[str, Any]
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
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
            f"{folder} is gone: remove .cache/bin/{tool}, then `make bench-operator` fetches it again"
        )
    return folder


def definitions(files: Sequence[Path]) -> list[Manifest]:
    """The CustomResourceDefinitions of some files, each of which is about a megabyte: too much for
    the loader in Python.
    """
    found = [one for path in files for one in yaml.load_all(path.read_text(), yaml.CSafeLoader)]
    return [one for one in found if one and one["kind"] == "CustomResourceDefinition"]


def webhooks(folder: Path) -> list[Manifest]:
    """The webhook configurations of a kustomize folder, with all its patches."""
    text = subprocess.check_output([binary("kubectl"), "kustomize", str(folder)], text=True)
    return [one for one in yaml.safe_load_all(text) if one["kind"] in WEBHOOKS]


def reached_at(url: str, bundle: str, configurations: Sequence[Manifest], owner: str) -> Iterator[Manifest]:
    """The same webhooks on this machine instead of behind a Service.

    Those of no particular name are called after `owner`.
    """
    for one in configurations:
        moved = [{**hook, "clientConfig": _client(hook, url, bundle)} for hook in one["webhooks"]]
        name = one["metadata"]["name"].replace("webhook-configuration", owner)
        yield {**one, "metadata": {"name": name}, "webhooks": moved}


def _client(hook: Manifest, url: str, bundle: str) -> Manifest:
    return {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": bundle}
