"""The profile's measurements on real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import torch

from coxswain.cost.constants import load_hardware
from coxswain.cost.error import error_of
from coxswain.cost.fit import Measured, Step, fitted, predicted
from coxswain.errors import Refused
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.profile import __main__ as profiler
from coxswain_train.profile.machine import RankMachine
from coxswain_train.profile.measure import measure
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import ThreadWorld, run_threads
from tests.unit.test_profile import MODEL


def profile(world: ProcessGroups) -> tuple[Measured, tuple[Step, ...]]:
    machine = RankMachine(world, MODEL, torch.device("cpu"), torch.float32, MemoryPolicy())
    return measure(machine, MODEL, machine.parameters, 256, 1.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_ranks_measure_the_same_and_their_figures_can_be_fitted(ranks: int) -> None:
    found = run_ranks(ranks, profile)
    assert all(other == found[0] for other in found)
    measured, held_out = found[0]
    assert measured.attention and measured.rings and measured.steps
    assert (measured.gbps > 0) == (ranks > 1) == any(s.ring for s in held_out)
    rates = fitted(measured, load_hardware("cpu").rates, None)
    error = error_of((predicted(s, rates, measured, True), s.seconds) for s in held_out)
    assert error.count == len(held_out) and 0 < error.p50 <= error.p95 < float("inf")


def test_a_time_is_of_one_call_and_the_mean_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By clocks that are a second later at each look on the first rank, two on the second."""
    clock = threading.local()

    def look() -> float:
        clock.now = getattr(clock, "now", 0.0) + getattr(clock, "step", 0.0)
        return float(clock.now)

    def measured(world: ThreadWorld) -> float:
        machine = RankMachine(world, MODEL, torch.device("cpu"), torch.float32, MemoryPolicy())  # type: ignore[arg-type]
        clock.step = 1.0 + world.rank
        return machine.attention(64, 4)

    monkeypatch.setattr(time, "perf_counter", look)
    assert run_threads(2, measured) == [1.5 / 4] * 2


def test_ranks_that_wait_for_one_that_cannot_measure_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for half an hour, and the command for them."""
    arguments, started = (
        ["--model", "llama-tiny", "--vocabulary", "320", "--processes", "3"],
        list[subprocess.Popen[bytes]](),
    )
    make = subprocess.Popen

    def start(*args: object, **more: object) -> subprocess.Popen[bytes]:
        started.append(make(*args, **more))  # type: ignore[call-overload]
        return started[-1]

    def refuse(*_: object) -> int:
        raise Refused("BadModel", "no such class")

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["profile", *arguments])
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(profiler, "_profile", refuse)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert profiler.main(arguments) == 2
    assert [process.returncode for process in started] == [-9, -9]


@pytest.mark.slow
def test_the_command_writes_one_file_that_all_its_ranks_have_measured(tmp_path: Path) -> None:
    shape, output = tmp_path / "shape.json", tmp_path / "mine.json"
    shape.write_bytes(msgspec.json.encode(MODEL))
    options = {"--model": shape, "--tokens": 128, "--layers": 1, "--seconds": 0.5, "--output": output}
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, "-m", "coxswain_train.profile", *words], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("predicted beside measured seconds") == 1
    found = load_hardware(str(output))
    assert "4 layers, hidden 128, 2 devices at a time, tasks of at most 128 tokens" in found.note
    assert found.rates.ring_table[0][0] == 64 and found.rates.inside_node_gbps > 0
