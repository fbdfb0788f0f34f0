"""The builder of Go tools builds each once, again when its sources move, and cleanly after an interruption."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

_GO = """#!/bin/sh
echo run >> "$COUNT"
while [ "$1" != -o ]; do shift; done
echo binary > "$2"
exit "$CODE"
"""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_tools", Path(__file__).with_name("build.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The builder with a module, a cache and a `go` of the test's own."""
    module = load()
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text("first")
    (tmp_path / "go").write_text(_GO)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setattr(module, "MODULE", tmp_path)
    monkeypatch.setattr(module, "BIN", tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("CODE", "0")
    return module


def runs(tmp_path: Path) -> int:
    count = tmp_path / "count"
    return len(count.read_text().splitlines()) if count.exists() else 0


def test_a_tool_is_built_once(build: ModuleType, tmp_path: Path) -> None:
    assert build.build("etcd").read_text() == "binary\n"
    build.build("etcd")
    assert runs(tmp_path) == 1


def test_other_module_versions_build_it_again(build: ModuleType, tmp_path: Path) -> None:
    build.build("etcd")
    (tmp_path / "go.mod").write_text("second")
    build.build("etcd")
    assert runs(tmp_path) == 2


def test_an_interrupted_build_is_repeated(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(subprocess.CalledProcessError):
        build.build("etcd")
    assert not (tmp_path / "bin" / "etcd").exists()
    monkeypatch.setenv("CODE", "0")
    assert build.build("etcd").exists()


def test_an_unknown_tool_is_refused_with_those_there_are(build: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["etcdd"]) == 2
    assert capsys.readouterr().err == f"unknown tool etcdd; there are: {', '.join(build.TOOLS)}\n"


def test_changed_source_of_our_own_builds_it_again(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pause").mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / "pause" / name).write_text("first")
    build.build("pause")
    (tmp_path / "pause" / "main.go").write_text("second")
    build.build("pause")
    assert runs(tmp_path) == 2


def test_every_tool_is_in_a_module() -> None:
    build = load()
    missing = [
        name
        for name, package in build.TOOLS.items()
        if not re.search(
            rf"^(module |tool |\t){re.escape(package)}$", (build.module_of(name) / "go.mod").read_text(), re.M
        )
    ]
    assert missing == []
