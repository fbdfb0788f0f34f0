"""Renders the chart by Helm, for tests of the chart and tests that need its roles."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.children import REPOSITORY, binary

CHART = REPOSITORY / "charts" / "coxswain"
KUBERNETES = "1.35.4"  # a Helm built from its module knows no version of its own
NAMESPACE = "coxswain-system"
HOME = REPOSITORY / ".cache" / "helm"  # Helm's caches, instead of the user's own folder

REGISTRY = "registry.example/team"
PATIENCE = 300  # seconds, Helm's own

Manifest = dict[str, Any]
Values = dict[str, Any]


def helm(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Helm on nothing but its arguments; `text` is its standard input."""
    HOME.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(HOME), "GOGC": "off"}  # it ends before it needs the room
    command = [binary("helm"), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, env=environment)


def template(values: Values | None = None, *options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` of a release `coxswain` in NAMESPACE with these values over a registry. Each is rendered once.

    The kinds are most of the text, and depend on no values but `crds`, `commonLabels` and `quarantine`: they are left out where
    other values are given.
    """
    chosen = dict(values or {})
    if chosen and not chosen.keys() & {"crds", "commonLabels", "quarantine"}:
        chosen["crds"] = {"enabled": False}
    return _template(text_of(chosen), options)


@cache
def _template(text: str, options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    chosen = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", "-")
    return helm("template", "coxswain", CHART, *chosen, *options, text=text)


def text_of(values: Values) -> str:
    """Of values over a registry, which the chart needs."""
    return yaml.safe_dump({**values, "image": {"registry": REGISTRY, **values.get("image", {})}})


def render(values: Values | None = None, *options: str) -> list[Manifest]:
    """All objects of the release in the order of installation, its test included.

    Raises AssertionError with Helm's output.
    """
    done = template(values, *options)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def refusal(values: Values) -> str:
    """Helm's error about values that it refuses."""
    done = template(values)
    assert done.returncode != 0, f"{values} was taken"
    return done.stderr


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] in kinds]


def is_test(manifest: Manifest) -> bool:
    """Made by `helm test` only."""
    return (manifest["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"


def operator_rights(values: Values | None = None) -> list[Manifest]:
    """The operator's ServiceAccount `coxswain` in NAMESPACE with all its roles and bindings: ready
    to be created.
    """
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return [m for m in of_kind(render(values), *kinds) if not is_test(m)]
