"""What a worker gives its engine of the tokenizer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from coxswain.layout import Device, uniform_layout
from coxswain.wire import World
from coxswain_train.engine.engine import Engine
from tests.unit import report_samples
from tests.unit.worker_fakes import FakeEngine, Running


def test_the_rows_of_the_tokenizers_ids_count_in_every_world_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []

    def engine(*given: Any) -> FakeEngine:
        built.append(inspect.signature(Engine.__init__).bind(None, *given).arguments)
        return FakeEngine()

    layout = uniform_layout([Device(0, 0)], 4)
    for generation in (2, 3):
        world = World(generation, 0, layout, layout.ranks(), ("t",), (), vocabulary=320, ids=257)
        Running(monkeypatch, report_samples.job(), world, engine).run()
    assert [(given["vocabulary"], given["ids"]) for given in built] == [(320, 257)] * 2
