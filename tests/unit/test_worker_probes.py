"""When a worker runs the short probe: before and behind a step as asked, and behind one that surprises it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from coxswain.layout import Device, uniform_layout
from coxswain.wire import World
from coxswain_train.engine.engine import StepResult
from coxswain_train.worker import worker as workers
from tests.step_samples import plan
from tests.unit import report_samples
from tests.unit.worker_fakes import FakeEngine, Running


class Engine(FakeEngine):
    def __init__(self) -> None:
        self.said: list[str] = []

    def probe(self) -> float:
        self.said.append("probe")
        return 0.001 * len(self.said)

    def step(self, work: Any, began: float) -> StepResult:
        self.said.append("step")
        return super().step(work, began)


@pytest.mark.parametrize(
    ("device", "asked", "surprising", "said", "probed"),
    [
        ("cuda", False, False, ["step"], UNSET),
        ("cuda", True, False, ["probe", "step", "probe"], 0.001),
        ("cuda", False, True, ["step", "probe"], 0.002),
        ("cuda", True, True, ["probe", "step", "probe"], 0.001),
        ("cpu", False, True, ["step"], UNSET),
        ("cpu", True, True, ["probe", "step", "probe"], 0.001),
    ],
)
def test_a_worker_probes_around_a_step_as_asked_and_on_accelerators_behind_one_that_surprises_it(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: bool, surprising: bool, said: list[str], probed: Any
) -> None:
    lengths = SimpleNamespace(surprises=lambda seconds, planned: surprising and planned == 1.0)
    monkeypatch.setattr(workers, "StepLengths", lambda: lengths)
    layout, engine = uniform_layout([Device(0, 0)], 4), Engine()
    world = World(1, 3, layout, layout.ranks(), ("t",), ())
    running = Running(
        monkeypatch, report_samples.job(), world, lambda *_: engine, plans=(plan(3),), probes=asked, device=device
    )
    reported = [message[2].probe_seconds for message in running.run() if message[0] == "/v1/reports"]
    assert (engine.said, reported) == (said, [probed])
