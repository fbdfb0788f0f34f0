"""When a worker runs the short probe: before and behind a step as asked, and behind one that surprises it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from coxswain_train.worker import worker as workers
from coxswain_train.worker.worker import Worker


class Engine:
    def __init__(self) -> None:
        self.said: list[str] = []

    def probe(self) -> float:
        self.said.append("probe")
        return 0.001 * len(self.said)

    def step(self, work: Any, began: float) -> Any:
        self.said.append("step")
        return SimpleNamespace(evaluation_seconds=0.0)


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
    reported: list[Any] = []
    monkeypatch.setattr(workers, "_report", lambda *args: reported.append(args[-1]))
    monkeypatch.setattr(workers.garbage, "between_steps", lambda step: None)
    worker, plan = object.__new__(Worker), SimpleNamespace(step=3, makespan_seconds=1.0)
    lengths = SimpleNamespace(surprises=lambda seconds, planned: surprising and planned == 1.0)
    values = {
        "_engine": Engine(), "_lengths": lengths, "_device": SimpleNamespace(type=device), "_assignment": SimpleNamespace(rank=0),
        "_prefetcher": SimpleNamespace(take=lambda plan: SimpleNamespace(work=None, delivered=0)),
        "_feed": SimpleNamespace(peek=lambda step: None),
        "_outbox": SimpleNamespace(put=lambda *args: None, begin=lambda step: None),
    }  # fmt: skip
    for name, value in values.items():
        setattr(worker, name, value)
    worker._step(plan, asked)  # type: ignore[arg-type]
    assert (values["_engine"].said, reported) == (said, [probed])  # type: ignore[attr-defined]
