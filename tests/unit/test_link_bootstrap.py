"""How services start: what they import, and that SIGTERM ends them meanwhile."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coxswain.import_guard import block_imports, empty_modules

# An import runs Python all the time: a wait for a lock loses a signal that comes just before it.
IMPORTS = "print('importing', flush=True)\nwhile True:\n    pass\n"
SERVICES = ["coxswain_data.loader", "coxswain_data.constructor", "coxswain_train.agent", "coxswain_coordinator"]
NEEDLESS = {
    "coxswain_data.loader": "aiohttp rich boto3 scipy torch",
    "coxswain_data.constructor": "aiohttp rich boto3 scipy torch",
    "coxswain_train.agent.agent": "numpy rich boto3 pyarrow torch",
    "coxswain_coordinator.__main__": "httpx rich boto3 pyarrow scipy torch",
    "coxswain_operator.process": "kubernetes requests numpy scipy pyarrow torch",
    "coxswain_cli.run": "numpy aiohttp kopf kubernetes pyarrow torch",
}


@pytest.mark.parametrize("command", [["coxswain_operator"], *(["coxswain_link.bootstrap", s] for s in SERVICES)])
def test_a_process_that_still_imports_exits_on_sigterm(tmp_path, command):
    (tmp_path / "msgspec.py").write_text(IMPORTS)
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, words) == (1, "stopped by SIGTERM while starting\n")


@pytest.mark.parametrize("module", NEEDLESS)
def test_a_service_imports_no_library_that_it_does_not_use(module):
    check = f"import sys, {module}; sys.exit(' '.join(sys.modules.keys() & {set(NEEDLESS[module].split())}) or 0)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    """`heavy` is what `light` imports if it is there."""
    (tmp_path / "light.py").write_text("try:\n    from heavy import use\nexcept ImportError:\n    use = None\n")
    (tmp_path / "heavy.py").write_text("use = 'heavy'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("light", "heavy"):
        sys.modules.pop(name, None)


def test_a_blocked_library_is_not_imported_and_can_be_imported_later(package):
    with block_imports("heavy"):
        light = importlib.import_module("light")
    assert light.use is None
    assert importlib.import_module("heavy").use == "heavy"


def test_a_library_that_is_imported_already_stays_usable_when_it_is_blocked(package):
    heavy = importlib.import_module("heavy")
    with block_imports("heavy"):
        light = importlib.import_module("light")
    assert light.use == "heavy"
    assert sys.modules["heavy"] is heavy


def test_an_emptied_library_is_not_imported_and_can_be_imported_later(package, tmp_path: Path):
    (tmp_path / "light.py").write_text("import heavy\n")
    with empty_modules("heavy"):
        light = importlib.import_module("light")
    assert not hasattr(light.heavy, "use")
    assert importlib.import_module("heavy").use == "heavy"


def test_a_library_that_is_imported_already_keeps_its_content_when_it_is_emptied(package):
    heavy = importlib.import_module("heavy")
    with empty_modules("heavy"):
        assert sys.modules["heavy"] is heavy


def test_a_start_of_cox_imports_no_command_line_of_a_library():
    """Each takes more time than all that `cox run` imports of its own."""
    check = (
        "import sys, coxswain_cli.apply; sys.exit(bool({'prompt_toolkit', 'cel.cli', 'httpx._main'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
