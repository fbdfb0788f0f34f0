"""What a rival ships beside its binary (definitions, webhooks), read from the Go module that it was
built from.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.process import binary

Manifest = dict[str, Any]
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


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
