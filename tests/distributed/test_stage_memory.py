"""What a stage sends is given up on the way: a step of many tasks takes no more memory than one of few. One rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from coxswain.config import ModelConfig
from coxswain.cost.memory import Recompute, Workload, peaks
from coxswain.models import parameter_specs
from coxswain.plan.values import Operation, Slice, Task
from coxswain_train.engine.engine import Engine, StepInput
from coxswain_train.engine.links import PARTING
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.step import parts
from coxswain_train.model.ring import Message
from tests.distributed import training
from tests.distributed.live_bytes import peak_bytes
from tests.distributed.reference import Stream
from tests.distributed.threads import Mail, ThreadWorld
from tests.layouts import layout_of

MODEL = ModelConfig(layers=6, hidden=64, heads=2, kv_heads=1, feed_forward=64)
TOKENS, ROWS = 512, 64
LAYOUT = layout_of([(1, 3), (1, 6)])


@dataclass
class Leaving:
    """A transfer: holds what is sent until nothing holds the transfer."""

    sent: Sequence[Message]
    links: Neighbour

    def wait(self) -> None:
        self.links.under_way -= 1

    def arrived(self) -> None: ...


@dataclass
class Neighbour:
    """The other stage: takes what comes, and sends zeros. Counts what nothing has waited for yet."""

    under_way: int = 0
    most: int = 0

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Leaving:
        self.under_way += bool(sends)
        self.most = max(self.most, self.under_way)
        for _, tensor in receives:
            tensor.zero_()
        return Leaving(sends, self)


@dataclass
class Alone(ThreadWorld):
    """The rank of one stage."""

    neighbour: Neighbour = field(default_factory=Neighbour)

    def exchange(self, ranks: tuple[int, ...]) -> Neighbour:  # type: ignore[override]
        return self.neighbour


def engine_of(world: Alone, recompute: Recompute) -> Engine:
    seat = LAYOUT.ranks()[world.rank]
    engine = Engine(
        MODEL, ROWS, training.OPTIMIZER, 10, LAYOUT, seat, world, torch.device("cpu"), torch.float32,  # type: ignore[arg-type]
        memory=MemoryPolicy(recompute),
    )  # fmt: skip
    for weight in engine.model.weights().values():
        nn.init.ones_(weight)
    return engine


def work_of(count: int, operations: Sequence[Operation]) -> StepInput:
    stream = Stream(lengths=(TOKENS,) * count, vocabulary=ROWS)
    mine = parts([Task(i, "pack", (0,), (Slice(0, i, 0, TOKENS),)) for i in range(count)], 0)
    batch = training.batch_of(stream, 0, mine)
    return StepInput(0, mine, operations, batch, int((batch.labels >= 0).sum()), stream.labels(0), 0, operations)


def in_turn(stage: int, count: int) -> list[Operation]:
    """One forward, one backward; stage 0 is one forward ahead."""
    kinds = [("F", i) for i in range(1 - stage)]
    kinds += [each for i in range(1 - stage, count) for each in (("F", i), ("B", i - 1 + stage))]
    return [Operation(k, i) for k, i in kinds + [("B", i) for i in range(count - 1 + stage, count)]]  # type: ignore[arg-type]


def peak(stage: int, count: int, evaluates: bool = False, recompute: Recompute = "None") -> tuple[int, int]:
    """The most bytes of a step or an evaluation of so many tasks beside the weights, and the most sends under way."""
    world = Alone(Mail(), stage, 2)
    engine = engine_of(world, recompute)
    if evaluates:
        work = work_of(count, [Operation("F", i) for i in range(count)])
        found = peak_bytes(lambda: engine.evaluate(work))
    else:
        work = work_of(count, in_turn(stage, count))
        found = peak_bytes(lambda: engine.compute(work))
    assert world.neighbour.under_way == 0
    return found, world.neighbour.most


@pytest.mark.parametrize(("stage", "evaluates"), [(0, False), (1, False), (0, True)])
def test_the_peak_of_a_stage_does_not_grow_with_the_number_of_tasks(stage: int, evaluates: bool) -> None:
    (few, _), (many, sends) = (peak(stage, count, evaluates) for count in (3, 32))
    print(f"stage {stage}, evaluation {evaluates}: {few} bytes with 3 tasks, {many} with 32; {sends} sends under way")
    assert many == pytest.approx(few, rel=0.1)
    assert sends <= PARTING + 1


@pytest.mark.parametrize("recompute", ["None", "Full"])
@pytest.mark.parametrize("stage", [0, 1])
def test_the_predicted_peak_of_a_stage_has_what_passes_between_stages(stage: int, recompute: Recompute) -> None:
    work = Workload(4, TOKENS, recompute)
    predicted = peaks(MODEL, parameter_specs(MODEL, ROWS), LAYOUT, work)[0, stage, 0]
    found, _ = peak(stage, 8, recompute=recompute)
    expected = predicted.gradients + predicted.activations + predicted.transient
    print(f"stage {stage}: {found} bytes, predicted {expected}")
    assert expected == pytest.approx(found, rel=0.1)
