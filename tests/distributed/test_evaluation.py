"""Evaluation behind a step: the loss of the new weights on held-out sequences, whatever the plan, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import full_box, window
from coxswain.layout import Layout, Seat
from coxswain.membership.values import Cursor, Membership
from coxswain.membership.values import Sequence as Drawn
from coxswain.models import parameter_specs
from coxswain.plan.values import Operation, Placement, StageOperations
from coxswain.wire import Evaluation
from coxswain_coordinator.planning.evaluations import evaluation_of
from coxswain_train.engine.engine import Engine, StepInput, StepResult
from coxswain_train.engine.step import parts
from coxswain_train.model.loss import linear_cross_entropy
from coxswain_train.parallel.process_groups import ProcessGroups
from tests.distributed import reference, training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads
from tests.layouts import layout_of

TRAINED, HELD_OUT, STEPS = (1, 7, 29, 16), (41, 2, 13, 30), 3
STREAM = Stream(lengths=TRAINED + HELD_OUT, vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3)
WHOLE = [(1, 3)]  # a replica of one device
# (layout, replicas without held-out tokens)
LAYOUTS = {
    "one device": (layout_of(WHOLE), ()),
    "two replicas": (layout_of(WHOLE, WHOLE), ()),
    "five replicas, two of them idle": (layout_of(*[WHOLE] * 5), (0, 4)),
    "a tensor group": (layout_of([(2, 3)]), ()),
    "three stages": (layout_of([(1, 1), (1, 2), (1, 3)]), ()),
    "two stages of tensor groups, twice": (layout_of([(2, 2), (2, 3)], [(2, 2), (2, 3)]), ()),
    "unequal replicas": (layout_of(WHOLE, [(2, 3)], [(1, 1), (2, 3)]), ()),
}


def labels_of(step: int, first: int, count: int) -> int:
    return sum(int((STREAM.sequence(step, i)[1] >= 0).sum()) for i in range(first, first + count))


def evaluation(plan: Plan, tasks: int) -> Evaluation:
    """Of this plan of the held-out sequences, behind a step of so many tasks."""
    made = tuple(Drawn("code", -1, i, 0, n, n) for i, n in enumerate(HELD_OUT))
    step = Membership(0, tuple(Drawn("code", 0, i, 0, n, n) for i, n in enumerate(TRAINED)), Cursor(0, 0, 0, ()))
    return evaluation_of(made, Placement("x", 1, 0, *plan, 0.0, 0.0, 0.0, 0.0), step, tasks)


def work_of(step: int, plan: Plan, held_out: Plan | None, seat: Seat) -> StepInput:
    follows = None if held_out is None else evaluation(held_out, len(plan[0]))
    mine = parts((*plan[0], *(follows.tasks if follows else ())), seat.replica)
    trained = labels_of(step, 0, len(TRAINED))
    valid = sum(
        int((STREAM.sequence(step, s.sequence)[1][s.start : s.stop] >= 0).sum())
        for part in mine.values() for s in part.slices if s.sequence < len(TRAINED)
    )  # fmt: skip
    own, forward = (operations_of(lists, seat) for lists in (plan[1], follows.operations if follows else ()))
    batch = training.batch_of(STREAM, step, mine)
    return StepInput(step, mine, own or (), batch, valid, trained, step, forward)


def operations_of(lists: Iterable[StageOperations], seat: Seat) -> Sequence[Operation] | None:
    return next((o.operations for o in lists if (o.replica, o.stage) == (seat.replica, seat.stage)), None)


def train(
    world: ProcessGroups, layout: Layout, plans: list[Plan], held_out: list[Plan] | None
) -> tuple[Engine, list[StepResult]]:
    engine = training.engine_of(world, torch.float64, MODEL, steps=STEPS, layout=layout)
    engine.initialise(training.SEED)
    work = [work_of(k, plans[k], held_out[k] if held_out else None, engine.seat) for k in range(STEPS)]
    return engine, [engine.step(part, time.perf_counter()) for part in work]


def plans_for(layout: Layout, idle: tuple[int, ...] = ()) -> tuple[list[Plan], list[Plan]]:
    replicas = len(layout.replicas)
    seeds = range(7 * replicas, 7 * replicas + STEPS)
    return [random_plan(TRAINED, replicas, s, layout=layout) for s in seeds], [
        random_plan(HELD_OUT, replicas, s + 1000, idle=idle, layout=layout) for s in seeds
    ]


def masters(engines: Iterable[Engine]) -> dict[str, torch.Tensor]:
    """The whole parameters, of what each rank owns."""
    specs = parameter_specs(MODEL, training.VOCABULARY)
    whole = {spec.name: torch.full(spec.shape, torch.nan, dtype=torch.float64) for spec in specs}
    for engine in engines:
        for box, values in engine.boxes()["parameter"].items():
            whole[box.name][window(full_box(box.name, tuple(whole[box.name].shape)), box)] = values
    return whole


@pytest.mark.parametrize(("layout", "idle"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_loss_is_that_of_a_plain_process_with_the_new_weights(layout: Layout, idle: tuple[int, ...]) -> None:
    found = run_threads(len(layout.ranks()), train, layout, *plans_for(layout, idle))
    weights = masters(engine for engine, _ in found)
    pairs = [STREAM.sequence(STEPS - 1, len(TRAINED) + i) for i in range(len(HELD_OUT))]
    with torch.no_grad():
        losses = [reference.loss_sum(MODEL, weights, torch.from_numpy(t), torch.from_numpy(n)) for t, n in pairs]
    total = sum(results[-1].evaluation_loss_sum or 0.0 for _, results in found)
    assert total == pytest.approx(float(sum(losses)), rel=1e-12)
    for rank in idle:
        assert found[rank][1][-1].evaluation_loss_sum == 0.0


@pytest.mark.parametrize("name", ["one device", "two stages of tensor groups, twice"])
def test_training_has_the_same_bits_with_and_without_evaluations(name: str) -> None:
    layout = LAYOUTS[name][0]
    plans, held_out = plans_for(layout)
    with_, without = (run_threads(len(layout.ranks()), train, layout, plans, part) for part in (held_out, None))
    for (one, _), (other, results) in zip(with_, without, strict=True):
        theirs = training.weights_of(other)
        assert all(np.array_equal(w, theirs[name]) for name, w in training.weights_of(one).items())
        assert [r.evaluation_loss_sum for r in results] == [None] * STEPS
        assert all(p.grad is None for p in one.model.weights().values())


def test_the_seconds_of_an_evaluation_are_its_own_and_none_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on while it runs alone."""
    now, layout = [5.0], LAYOUTS["one device"][0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def evaluate(_: StepInput) -> float:
        now[0] += 3.0
        return 1.5

    def step(world: ProcessGroups) -> StepResult:
        engine = training.engine_of(world, torch.float64, MODEL, layout=layout)
        engine.initialise(training.SEED)
        engine.evaluate = evaluate  # type: ignore[method-assign]
        return engine.step(work_of(0, plans_for(layout)[0][0], None, engine.seat), 4.0)

    (result,) = run_threads(1, step)
    assert (result.evaluation_seconds, result.evaluation_loss_sum) == (3.0, 1.5)
    assert (result.compute_seconds, result.reduce_seconds) == (0.0, 0.0)
    assert {(timing.start, timing.stop) for timing in result.timings} == {(1.0, 1.0)}


@pytest.mark.parametrize("chunk", [3, 1024])
def test_a_loss_without_gradients_is_that_with_gradients(chunk: int) -> None:
    torch.manual_seed(1)
    hidden, weight = (
        torch.randn(10, 8, dtype=torch.float64),
        torch.randn(32, 8, dtype=torch.float64, requires_grad=True),
    )
    labels = torch.tensor([1, -100, 3, 31, 0, -100, 7, 8, 9, 10])
    whole = linear_cross_entropy(hidden, weight, labels, chunk)
    with torch.no_grad():
        plain = linear_cross_entropy(hidden, weight, labels, chunk)
    assert whole.requires_grad and not plain.requires_grad
    assert float(plain) == pytest.approx(float(whole.detach()), rel=1e-14)


def test_without_gradients_no_logit_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    plain = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda x, **more: made.append(tuple(x.shape)) or plain(x, **more))
    with torch.no_grad():
        linear_cross_entropy(torch.ones(4, 8), torch.ones(32, 8), torch.tensor([1, 2, 3, 4]))
    assert made == []
    linear_cross_entropy(torch.ones(4, 8), torch.ones(32, 8), torch.tensor([1, 2, 3, 4]))
    assert made == [(4, 8), (32, 8)]
