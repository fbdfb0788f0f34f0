"""Builds the servers of another release of Kubernetes, to run the tests against it: `python -m
e2e.tools.other_kubernetes v1.30.14` (some ten minutes), then `COXSWAIN_KUBERNETES=v1.30.14 make
e2e-smoke`, or pytest.

All other tools stay as they are pinned. What the servers depend on is as the release's own go.mod
says.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.tools.build import CACHE, KUBERNETES, building, environment, go_build, go_command, linker_flags
from e2e.tools.guarded import run_guarded

VARIABLE = "COXSWAIN_KUBERNETES"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_RELEASE = re.compile(r"v1\.\d+\.\d+")
_STAGED = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_GO = re.compile(r"^go (\S+)$", re.MULTILINE)


def folder(release: str) -> Path:
    return CACHE / "kubernetes" / release


def go_mod(release: str, theirs: str) -> str:
    """A module that needs this release. `theirs`: its own go.mod, whose parts are in its repository, and published as v0.x."""
    parts = "".join(f"\t{name} => {name} v0.{release.removeprefix('v1.')}\n" for name in _STAGED.findall(theirs))
    (go,) = _GO.findall(theirs)
    return f"module coxswain.dev/kubernetes\n\ngo {go}\n\nrequire k8s.io/kubernetes {release}\n\nreplace (\n{parts})\n"


def imports() -> str:
    lines = "".join(f'\t_ "k8s.io/kubernetes/cmd/{name}/app"\n' for name in SERVERS)
    return f"package kubernetes\n\nimport (\n{lines})\n"


def build(release: str) -> Iterator[Path]:
    """The servers. One that is there is not built again. Raises CalledProcessError."""
    module, variables = folder(release) / "module", environment("mod")
    if not (module / "go.sum").exists():
        _make_module(module, release, variables)
    for name in SERVERS:
        made = folder(release) / name
        if not made.exists():
            print(f"building {name} {release} ...", file=sys.stderr, flush=True)
            go_build(module, f"k8s.io/kubernetes/cmd/{name}", made, linker_flags(release), variables)
        yield made


def _make_module(module: Path, release: str, variables: dict[str, str]) -> None:
    """Its go.sum comes last."""
    module.mkdir(parents=True, exist_ok=True)
    go, found = go_command(), module / "download.json"
    with found.open("w") as output:
        run_guarded([go, "mod", "download", "-json", f"k8s.io/kubernetes@{release}"], env=variables, stdout=output)
    (module / "go.mod").write_text(go_mod(release, Path(json.loads(found.read_text())["GoMod"]).read_text()))
    (module / "imports.go").write_text(imports())
    run_guarded([go, "mod", "tidy"], cwd=module, env=variables)


def chosen() -> str:
    """The release that tests run; empty: the pinned one."""
    return os.environ.get(VARIABLE, "")


def minor() -> int:
    """Of the release that tests run: 35 of v1.35.4."""
    return int((chosen() or KUBERNETES).split(".")[1])


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not _RELEASE.fullmatch(arguments[0]):
        print(f"usage: python -m {__spec__.name} v1.MINOR.PATCH", file=sys.stderr)
        return 2
    with building():
        for server in build(arguments[0]):
            print(server)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
