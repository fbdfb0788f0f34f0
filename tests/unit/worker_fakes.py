"""A worker in this process, whose services, data and engine are stand-ins that note what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coxswain.config import JobConfig
from coxswain.wire import StepDirective, StepPlan, World
from coxswain_train.engine.engine import StepResult
from coxswain_train.live.state import LiveState
from coxswain_train.worker import worker as workers
from coxswain_train.worker.assignments import Assignment
from coxswain_train.worker.worker import Worker
from tests.unit.agent_fakes import environment

DELIVERED = 77
"""The worker's part of each step's delivered digest."""


class BrokenOff(Exception):
    """Ends a worker amid its run."""


class FakeEngine:
    """Does nothing. A test's own one says what a step is."""

    before_update: Any = None
    seed = 0

    def initialise(self, *_: object) -> None: ...

    def probe(self) -> float:
        return 0.0

    def step(self, work: Any, began: float) -> StepResult:
        return StepResult(0.0, 0.0, 0.0, 0.0, 0.0, ())


class Directives:
    """Runs a step for each plan, then breaks off. `probes`: whether the coordinator asks for the short probe."""

    def __init__(self, plans: tuple[StepPlan, ...], probes: bool) -> None:
        self._plans, self._probes = list(plans), probes

    def next(self, step: int) -> StepDirective:
        if not self._plans:
            raise BrokenOff
        return StepDirective(step, False, "", self._plans.pop(0), self._probes)


class Running:
    """A worker of this rank. `said`: what goes to its outbox, and which parts it closes, in order. `failed`: the part whose
    thread has ended with an error."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, job: JobConfig, world: World, engine: Callable[..., Any], rank: int = 0,
        plans: tuple[StepPlan, ...] = (), probes: bool = False, device: str = "cpu", live: LiveState | None = None,
        failed: str = "",
    ) -> None:  # fmt: skip
        self.said, self._failed = list[Any](), failed
        none: Any = None
        stand_ins = {
            "fetch_world": lambda *_: world,
            "device_of": lambda hardware: torch.device(device),
            "snapshots_of": lambda device: None,
            "rendezvous": lambda *_: None,
            "memory_policy": lambda *_: None,
            "Outbox": lambda *_: SimpleNamespace(
                put=lambda *message: self.said.append(message), flush=lambda _: self.said.append("flush"),
                begin=lambda step: None, advance=lambda: None, check=lambda: self._check("outbox"),
            ),
            "PlanFeed": lambda *_, **of: SimpleNamespace(
                peek=lambda step: None, forget_before=lambda step: None, close=self._closes("feed")
            ),
            "BatchPrefetcher": lambda *_: SimpleNamespace(
                take=lambda plan: SimpleNamespace(work=None, delivered=DELIVERED), close=self._closes("prefetcher")
            ),
            "Client": lambda *_, **options: SimpleNamespace(close=self._closes("once")),
            "DirectiveClient": lambda *_: Directives(plans, probes),
            "Engine": engine,
        }  # fmt: skip
        for name, part in stand_ins.items():
            monkeypatch.setattr(workers, name, part)
        saver = SimpleNamespace(settle=self._closes("saver"), check=lambda: self._check("saver"))
        monkeypatch.setattr(workers.save_load, "Saver", lambda *_: saver)
        env = dataclasses.replace(environment(), job=job)
        assignment = Assignment(world.generation, rank)
        self.worker = Worker(env, assignment, none, none, none, lambda: False, live or LiveState())

    def _closes(self, part: str) -> Callable[[], None]:
        return lambda: self.said.append(part)

    def _check(self, part: str) -> None:
        if part == self._failed:
            raise BrokenOff

    def run(self) -> list[Any]:
        """What the worker sends before it breaks off, and closes behind that."""
        try:
            with suppress(BrokenOff):
                self.worker.run()
        finally:
            self.worker.close()
        return self.said
