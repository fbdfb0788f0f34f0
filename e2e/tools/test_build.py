"""The builder of Go tools builds each once, again when its sources move, and leaves no process when it is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.tools import build
from tests.children import REPOSITORY, wait_until

GO = """#!/bin/sh
echo run >> "$COUNT"
while [ "$1" != -o ]; do shift; done
echo binary > "$2"
exit "$CODE"
"""
# As `go` does, it has compilers below it; and a signal to it alone ends none of them.
ENDLESS_GO = """#!/bin/sh
echo run >> "$COUNT"
sleep 1000 &
echo $! > "$COUNT.compiler"
wait
"""


@dataclass
class Checkout:
    """The builder alone in a folder, with a module and a `go` of the test's own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *names: str) -> subprocess.Popen[str]:
        variables = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "COUNT": str(self.folder / "count"), "CODE": "0",
            **self.environment,
        }  # fmt: skip
        command = [sys.executable, "-m", "e2e.tools.build", *names]
        return subprocess.Popen(
            command, cwd=self.folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def build(self, *names: str) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        process = self.start(*names)
        output, errors = process.communicate(timeout=30)
        return process.returncode, output, errors

    def write_go(self, script: str) -> None:
        (self.folder / "go").write_text(script)
        (self.folder / "go").chmod(0o755)

    @property
    def runs(self) -> int:
        count = self.folder / "count"
        return len(count.read_text().splitlines()) if count.exists() else 0

    @property
    def processes(self) -> list[int]:
        """Those that have the folder's counter in their environment, as all that the builder starts have."""
        mark = f"COUNT={self.folder / 'count'}".encode()
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    tools = tmp_path / "e2e" / "tools"
    tools.mkdir(parents=True)
    (tmp_path / "e2e" / "__init__.py").touch()
    for name in ("build.py", "guarded.py"):
        shutil.copy(REPOSITORY / "e2e" / "tools" / name, tools)
    for name in ("go.mod", "go.sum"):
        (tools / name).write_text("first")
    made = Checkout(tmp_path)
    made.write_go(GO)
    yield made
    for pid in made.processes:
        os.kill(pid, signal.SIGKILL)


def test_a_tool_is_built_once(checkout: Checkout) -> None:
    code, output, _ = checkout.build("etcd")
    assert (code, Path(output.strip()).read_text()) == (0, "binary\n")
    assert checkout.build("etcd")[:2] == (0, output)
    assert checkout.runs == 1


def test_other_module_versions_build_it_again(checkout: Checkout) -> None:
    checkout.build("etcd")
    (checkout.folder / "e2e" / "tools" / "go.mod").write_text("second")
    checkout.build("etcd")
    assert checkout.runs == 2


def test_a_failed_build_is_repeated(checkout: Checkout) -> None:
    checkout.environment["CODE"] = "1"
    code, output, _ = checkout.build("etcd")
    assert code != 0
    assert not (checkout.folder / ".cache" / "bin" / "etcd").exists()
    del checkout.environment["CODE"]
    code, output, _ = checkout.build("etcd")
    assert (code, Path(output.strip()).exists()) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_build_that_is_killed_leaves_no_process_and_the_next_one_succeeds(
    checkout: Checkout, number: signal.Signals
) -> None:
    checkout.write_go(ENDLESS_GO)
    builder = checkout.start("etcd")
    wait_until((checkout.folder / "count.compiler").exists, "the compiler runs")
    # /proc names none of a process amid its exec.
    wait_until(lambda: len(checkout.processes) >= 4, "the builder, its guard, go and the compiler are seen")
    builder.send_signal(number)
    builder.communicate(timeout=30)
    wait_until(lambda: not checkout.processes, "all processes of the build are gone", 10)
    checkout.write_go(GO)
    assert checkout.build("etcd")[0] == 0
    assert not (checkout.folder / ".cache" / "go" / "scratch").exists()


def test_two_builds_of_one_tool_at_the_same_time_run_the_compiler_once(checkout: Checkout) -> None:
    builders = [checkout.start("etcd") for _ in range(2)]
    assert [builder.communicate(timeout=30)[0] for builder in builders] == 2 * [
        f"{checkout.folder / '.cache' / 'bin' / 'etcd'}\n"
    ]
    assert checkout.runs == 1


def test_an_unknown_tool_is_refused_with_those_there_are(checkout: Checkout) -> None:
    code, _, errors = checkout.build("etcdd")
    assert (code, errors) == (2, f"unknown tool etcdd; there are: {', '.join(build.TOOLS)}\n")


def test_changed_source_of_our_own_builds_it_again(checkout: Checkout) -> None:
    pause = checkout.folder / "e2e" / "tools" / "pause"
    pause.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (pause / name).write_text("first")
    checkout.build("pause")
    (pause / "main.go").write_text("second")
    checkout.build("pause")
    assert checkout.runs == 2


def _is_in_module(name: str, package: str) -> bool:
    """It is the module, one of its tools, or a program of our own in a folder of it."""
    module = build.module_of(name)
    text = (module / "go.mod").read_text()
    own = f"module {package.removesuffix(f'/{name}')}\n" in text and (module / name / "main.go").exists()
    return own or bool(re.search(rf"^(module |tool |\t){re.escape(package)}$", text, re.M))


def test_every_tool_is_in_a_module() -> None:
    missing = [name for name, package in build.TOOLS.items() if not _is_in_module(name, package)]
    assert missing == []
