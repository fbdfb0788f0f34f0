"""The profile's measurements on real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from math import prod
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain.config import CustomModel
from coxswain.cost.constants import load_hardware
from coxswain.cost.error import error_of
from coxswain.cost.fit import Measured, Step, fitted, predicted
from coxswain.errors import Refused
from coxswain.models import parameter_specs
from coxswain_train.engine.engine import StepInput
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.step import Part
from coxswain_train.model.ring import Message
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.profile import __main__ as profiler
from coxswain_train.profile.machine import RankMachine, tasks_of
from coxswain_train.profile.measure import measure
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import ThreadWorld, run_threads
from tests.unit.test_profile import MODEL


def machine_of(world: ThreadWorld) -> RankMachine:
    return RankMachine(world, MODEL, torch.device("cpu"), torch.float32, MemoryPolicy())  # type: ignore[arg-type]


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
        machine = machine_of(world)
        clock.step = 1.0 + world.rank
        return machine.attention(64, 4)

    monkeypatch.setattr(time, "perf_counter", look)
    assert run_threads(2, measured) == [1.5 / 4] * 2


def test_the_tasks_of_a_step_are_its_packs_on_every_replica_and_its_ring_over_all() -> None:
    found = list(tasks_of(Step(packs=((3, 4), (5,)), ring=16), 2))
    kinds = [("pack", (0,)), ("pack", (0,)), ("pack", (1,)), ("pack", (1,)), ("ring", (0, 1))]
    assert [(task.kind, task.replicas) for task in found] == kinds
    assert [task.index for task in found] == list(range(5))
    assert all({s.replica for s in task.slices} == set(task.replicas) for task in found)
    lengths = Counter[int]()
    for task in found:
        for s in task.slices:
            lengths[s.sequence] += s.stop - s.start
    assert lengths == dict(enumerate([3, 4, 5, 3, 4, 5, 16]))


def test_a_step_without_a_ring_has_packs_alone() -> None:
    assert {task.kind for task in tasks_of(Step(packs=((3,),)), 2)} == {"pack"}


def stepped(world: ThreadWorld) -> list[StepInput]:
    """What the engine of a rank gets in two steps."""
    machine, works = machine_of(world), list[StepInput]()
    machine.engine.step = lambda work, _: works.append(work)  # type: ignore[assignment, method-assign, return-value]
    for _ in range(2):
        machine.step(Step(packs=((3, 4),), ring=16))
    return works


def test_each_rank_computes_its_own_part_of_a_step_and_divides_by_the_labels_of_all() -> None:
    for works in run_threads(2, stepped):
        assert [(work.step, work.plan) for work in works] == [(0, 0), (1, 1)]
        for work in works:
            assert (work.valid, work.labels) == (3 + 4 + 8, 2 * (3 + 4) + 16)
            slices = [s for part in work.parts.values() for s in part.slices]
            assert work.batch.positions.tolist() == [p for s in slices for p in range(s.start, s.stop)]
            assert len(work.batch.tokens) == len(work.batch.labels) == work.valid
            assert [(o.kind, o.task) for o in work.operations] == [(k, i) for i in work.parts for k in ("F", "B")]


def test_a_model_with_as_many_positions_as_its_job_needs_runs_longer_rings_and_packs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a profile are as long as its ranks hold, whatever sequences the job has."""
    custom = CustomModel(path="gpt2:GPT2", arguments={"context": 16})
    model = replace(MODEL, layers=1, hidden=32, kv_heads=4, feed_forward=48, vocabulary=64, custom=custom)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))

    def stepped(world: ThreadWorld) -> float:
        machine = RankMachine(world, model, torch.device("cpu"), torch.float32, MemoryPolicy(), 16)  # type: ignore[arg-type]
        return machine.step(Step(packs=((17,),), ring=40))

    assert min(run_threads(2, stepped)) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ring_that_is_timed_gives_each_rank_its_tokens(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank alone plays four."""
    parts = list[list[tuple[int, int]]]()

    def attend(part: Part, *_: object) -> object:
        parts.append([(s.start, s.stop) for s in part.slices])
        return object()

    def ring(world: ThreadWorld) -> int:
        machine = machine_of(world)
        monkeypatch.setattr(machine, "attended", lambda attend, tokens, calls: 0.0)
        machine.ring(32, 1)
        return machine.degree

    monkeypatch.setattr("coxswain_train.profile.machine.attend_of", attend)
    assert run_threads(ranks, ring) == [4 if ranks == 1 else ranks] * ranks
    assert [sum(stop - start for start, stop in part) for part in parts] == [32] * ranks
    assert max(stop for part in parts for _, stop in part) == 32 * (4 if ranks == 1 else ranks)


def test_attention_is_timed_with_the_models_heads_and_its_fewer_key_heads() -> None:
    def shapes(world: ThreadWorld) -> list[tuple[int, ...]]:
        found = list[tuple[int, ...]]()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            found.extend(tuple(each.shape) for each in (query, key, value))
            return query + key.sum() + value.sum()

        machine_of(world).attended(attend, 16, 1)
        return found

    assert run_threads(1, shapes) == [[(4, 16, 32), (2, 16, 32), (2, 16, 32)]]


def test_an_exchange_is_of_so_many_bytes_to_the_next_rank_and_from_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exchanged(world: ThreadWorld) -> list[tuple[int, int, int, int]]:
        found, plain = list[tuple[int, int, int, int]](), world.exchange

        class Ring:
            def start(self, sends: list[Message], receives: list[Message]) -> object:
                ((to, out),), ((source, into),) = sends, receives
                found.append((to, out.nbytes, source, into.nbytes))
                return plain((0, 1, 2)).start(sends, receives)

        monkeypatch.setattr(world, "exchange", lambda _: Ring())
        machine_of(world).exchange(100, 2)
        return found

    assert run_threads(3, exchanged) == [[((r + 1) % 3, 100, (r - 1) % 3, 100)] * 2 for r in range(3)]


@pytest.mark.parametrize(
    ("device", "events"),
    [("cpu", ["meet", "call", "call", "meet"]), ("cuda", ["meet", "settle", "call", "call", "settle", "meet"])],
)
def test_ranks_meet_before_what_is_timed_and_an_accelerator_has_done_all_of_it(
    device: str, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls return before their kernels have run."""

    def timed(world: ThreadWorld) -> list[str]:
        found, machine, meet = list[str](), machine_of(world), world.scalars

        def meeting(values: list[float]) -> list[list[float]]:
            found.append("meet")
            return meet(values)

        monkeypatch.setattr("torch.cuda.synchronize", lambda _: found.append("settle"))
        world.scalars = meeting  # type: ignore[method-assign, assignment]
        machine.device = torch.device(device)
        machine.timed(lambda: found.append("call"), 2)
        return found

    assert run_threads(1, timed) == [events]


def test_the_parameters_that_are_profiled_are_those_of_the_whole_model() -> None:
    specs = parameter_specs(MODEL, MODEL.vocabulary)
    assert run_threads(1, lambda world: machine_of(world).parameters) == [sum(prod(spec.shape) for spec in specs)]


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
    monkeypatch.setattr(profiler, "profile", refuse)
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
