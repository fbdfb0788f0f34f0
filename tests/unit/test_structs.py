"""Structs are ready for threads once their module is imported: a first decoding in two threads at once would end the process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Prints which structs msgspec has not looked at yet: it does so by this function, at the first decoding.
LOOK = """
import importlib, json, sys, msgspec
late, looked = [], []
def profile(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looked.append(1)
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == name:
            looked.clear()
            sys.setprofile(profile)
            msgspec.json.Decoder(value)
            sys.setprofile(None)
            late += [f"{name}.{value.__name__}"] * bool(looked)
print(json.dumps(late))
"""
# Two threads decode structs for the first time at once; `ready` as a module that calls `prepare` has them.
RACE = """
import sys, threading, types, msgspec
from coxswain.structs import prepare
ready, name = sys.argv[1] == "ready", "made"
sys.setswitchinterval(1e-6)
for n in range(int(sys.argv[2])):
    module = sys.modules[name] = types.ModuleType(name)
    module.inner = msgspec.defstruct("Inner", [(f"f{i}", int | None, None) for i in range(12)], module=name)
    module.outer = msgspec.defstruct("Outer", [("a", list[module.inner]), ("b", dict[str, module.inner])], module=name)
    if ready:
        prepare(name)
    begin = threading.Barrier(4)
    def decode():
        begin.wait()
        msgspec.json.decode(b'{"a": [{"f0": 1}], "b": {"x": {"f3": 4}}}', type=module.outer)
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for one in threads: one.start()
    for one in threads: one.join()
"""


def of_structs() -> list[str]:
    """Modules of core and runtime that define structs."""
    found = []
    for folder in ("core", "runtime"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if re.search(r"^class \w+\((msgspec\.)?Struct\b", path.read_text(), re.M):
                found.append(".".join(path.relative_to(ROOT / folder).with_suffix("").parts))
    return found


def test_every_struct_is_prepared_when_its_module_has_been_imported() -> None:
    modules = of_structs()
    assert len(modules) > 20
    found = subprocess.run([sys.executable, "-c", LOOK, *modules], check=True, capture_output=True, timeout=120)
    assert json.loads(found.stdout) == []


@pytest.mark.slow
def test_threads_that_decode_prepared_structs_at_once_end_no_process() -> None:
    command = [sys.executable, "-c", RACE]
    assert subprocess.run([*command, "ready", "2000"], timeout=300).returncode == 0
