"""What a worker gives its engine of the tokenizer."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coxswain.layout import Device, uniform_layout
from coxswain.wire import World
from coxswain_train.engine.engine import Engine
from coxswain_train.worker import worker as workers
from coxswain_train.worker.worker import Worker
from tests.unit import report_samples


def test_the_rows_of_the_tokenizers_ids_count_in_every_world_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []

    def engine(*given: Any) -> Any:
        built.append(inspect.signature(Engine.__init__).bind(None, *given).arguments)
        return SimpleNamespace()

    monkeypatch.setattr(workers, "Engine", engine)
    monkeypatch.setattr(workers, "rendezvous", lambda *_: None)
    layout, worker = uniform_layout([Device(0, 0)], 4), object.__new__(Worker)
    world = World(2, 0, layout, layout.ranks(), ("t",), (), vocabulary=320, ids=257)
    values = {
        "_env": SimpleNamespace(job=report_samples.job(), secrets_dir=None, pod_ip=""), "_device": torch.device("cpu"),
        "_world": world, "_live": SimpleNamespace(forget=lambda: None), "_once": None, "_outbox": None,
        "_assignment": SimpleNamespace(rank=0, generation=2), "_check_world": None, "_saver": SimpleNamespace(settle=None),
    }  # fmt: skip
    for name, value in values.items():
        setattr(worker, name, value)
    worker._build()
    (given,) = built
    assert (given["vocabulary"], given["ids"]) == (320, 257)
