"""Another release of Kubernetes: its servers are built once, in a module of its own, and are run in place of the pinned ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.process import NotBuilt, binary
from e2e.tools.build import BIN
from e2e.tools.other_kubernetes import SERVERS, VARIABLE, go_mod, minor
from tests.children import REPOSITORY

THEIRS = """module k8s.io/kubernetes

go 1.22.0

require k8s.io/api v0.0.0

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""
MODULE = """module coxswain.dev/kubernetes

go 1.22.0

require k8s.io/kubernetes v1.30.14

replace (
\tk8s.io/api => k8s.io/api v0.30.14
\tk8s.io/kubelet => k8s.io/kubelet v0.30.14
)
"""
GO = """#!/bin/sh
echo "$1 $2" >> "$COUNT"
case "$1 $2" in
  "mod download") echo "{\\"GoMod\\": \\"$THEIRS\\"}" ;;
  "mod tidy") touch go.sum ;;
  *) while [ "$1" != -o ]; do shift; done; echo "$3" > "$2"; [ "$3" != "k8s.io/kubernetes/cmd/$FAILS" ] ;;
esac
"""


class Checkout:
    """The builder alone in a folder, with a `go` of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, tools = folder, folder / "e2e" / "tools"
        tools.mkdir(parents=True)
        for name in ("build.py", "guarded.py", "other_kubernetes.py"):
            shutil.copy(REPOSITORY / "e2e" / "tools" / name, tools)
        (folder / "theirs").write_text(THEIRS)
        (folder / "go").write_text(GO)
        (folder / "go").chmod(0o755)

    def build(self, *arguments: str, fails: str = "none") -> subprocess.CompletedProcess[str]:
        own = {"COUNT": str(self.folder / "count"), "THEIRS": str(self.folder / "theirs"), "FAILS": fails}
        variables = {"PATH": f"{self.folder}:{os.environ['PATH']}", **own}
        command = [sys.executable, "-m", "e2e.tools.other_kubernetes", *arguments]
        return subprocess.run(command, cwd=self.folder, env=variables, text=True, capture_output=True, timeout=60)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "count").read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_module_of_a_release_takes_its_parts_as_they_are_published() -> None:
    assert go_mod("v1.30.14", THEIRS) == MODULE


def test_the_servers_of_a_release_are_built_once(checkout: Checkout) -> None:
    built = [str(checkout.folder / ".cache" / "kubernetes" / "v1.30.14" / name) for name in SERVERS]
    for _ in range(2):
        assert checkout.build("v1.30.14").stdout.splitlines() == built
    assert checkout.calls == ["mod download", "mod tidy", *["build -p"] * len(SERVERS)]
    assert [Path(path).read_text() for path in built] == [f"k8s.io/kubernetes/cmd/{name}\n" for name in SERVERS]


def test_a_build_that_fails_leaves_no_server_and_goes_on_with_it(checkout: Checkout) -> None:
    found = checkout.build("v1.30.14", fails="kubelet")
    assert found.returncode != 0
    assert [Path(path).name for path in found.stdout.splitlines()] == list(SERVERS[:3])
    assert not (checkout.folder / ".cache" / "kubernetes" / "v1.30.14" / "kubelet").exists()
    assert checkout.build("v1.30.14").returncode == 0
    assert checkout.calls.count("build -p") == len(SERVERS) + 1


@pytest.mark.parametrize("arguments", [[], ["1.30.14"], ["v1.30"], ["v1.30.14", "v1.31.0"], ["../v1.30.14"]])
def test_what_is_no_release_is_refused_before_anything_is_fetched(checkout: Checkout, arguments: list[str]) -> None:
    found = checkout.build(*arguments)
    assert (found.returncode, found.stderr) == (2, "usage: python -m e2e.tools.other_kubernetes v1.MINOR.PATCH\n")
    assert not (checkout.folder / "count").exists()


def test_the_variable_names_the_release_of_the_servers_and_of_no_other_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "v1.29.0")
    with pytest.raises(NotBuilt, match=r"kubelet v1\.29\.0 .* -m e2e\.tools\.other_kubernetes v1\.29\.0` in "):
        binary("kubelet")
    assert (binary("kubectl"), minor()) == (BIN / "kubectl", 29)
    monkeypatch.delenv(VARIABLE)
    assert (binary("kube-apiserver"), minor()) == (BIN / "kube-apiserver", 35)
