"""Evaluation behind a step: the loss of the new weights on held-out sequences, whatever the plan, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from coxswain.membership.values import Cursor, Membership, Sequence
from coxswain.plan.values import Placement
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

TRAINED, HELD_OUT, STEPS = (1, 7, 29, 16), (41, 2, 13, 30), 3
STREAM = Stream(lengths=TRAINED + HELD_OUT, vocabulary=training.VOCABULARY)
# (replicas, degree of the rings (0: any), replicas without held-out tokens)
LAYOUTS = [(1, 0, ()), (2, 2, ()), (3, 0, (1,)), (4, 4, ()), (5, 3, (0, 4))]


def labels_of(step: int, first: int, count: int) -> int:
    return sum(int((STREAM.sequence(step, i)[1] >= 0).sum()) for i in range(first, first + count))


def evaluation(plan: Plan, tasks: int) -> Evaluation:
    """Of this plan of the held-out sequences, behind a step of so many tasks."""
    made = tuple(Sequence("code", -1, i, 0, n, n) for i, n in enumerate(HELD_OUT))
    step = Membership(0, tuple(Sequence("code", 0, i, 0, n, n) for i, n in enumerate(TRAINED)), Cursor(0, 0, 0, ()))
    return evaluation_of(made, Placement("x", 1, 0, *plan, 0.0, 0.0, 0.0, 0.0), step, tasks)


def work_of(step: int, plan: Plan, held_out: Plan | None, rank: int) -> StepInput:
    follows = None if held_out is None else evaluation(held_out, len(plan[0]))
    mine = parts((*plan[0], *(follows.tasks if follows else ())), rank)
    trained = labels_of(step, 0, len(TRAINED))
    valid = sum(
        int((STREAM.sequence(step, s.sequence)[1][s.start : s.stop] >= 0).sum())
        for part in mine.values() for s in part.slices if s.sequence < len(TRAINED)
    )  # fmt: skip
    operations = follows.operations[rank].operations if follows else None
    batch = training.batch_of(STREAM, step, mine)
    return StepInput(step, mine, plan[1][rank].operations, batch, valid, trained, step, operations)


def train(world: ProcessGroups, plans: list[Plan], held_out: list[Plan] | None) -> tuple[Engine, list[StepResult]]:
    engine = training.engine_of(world, torch.float64, steps=STEPS)
    engine.initialise(training.SEED)
    work = [work_of(k, plans[k], held_out[k] if held_out else None, world.rank) for k in range(STEPS)]
    return engine, [engine.step(part, time.perf_counter()) for part in work]


def plans_for(replicas: int, degree: int = 0, idle: tuple[int, ...] = ()) -> tuple[list[Plan], list[Plan]]:
    seeds = range(7 * replicas, 7 * replicas + STEPS)
    return [random_plan(TRAINED, replicas, s) for s in seeds], [
        random_plan(HELD_OUT, replicas, s + 1000, degree=degree, idle=idle) for s in seeds
    ]


@pytest.mark.parametrize(("replicas", "degree", "idle"), LAYOUTS)
def test_the_loss_is_that_of_a_plain_process_with_the_new_weights(
    replicas: int, degree: int, idle: tuple[int, ...]
) -> None:
    found = run_threads(replicas, train, *plans_for(replicas, degree, idle))
    weights = {name: torch.from_numpy(w) for name, w in training.weights_of(found[0][0]).items()}
    pairs = [STREAM.sequence(STEPS - 1, len(TRAINED) + i) for i in range(len(HELD_OUT))]
    with torch.no_grad():
        wanted = sum(
            float(reference.loss_sum(training.MODEL, weights, torch.from_numpy(t), torch.from_numpy(n)))
            for t, n in pairs
        )
    total = sum(results[-1].evaluation_loss_sum or 0.0 for _, results in found)
    assert total == pytest.approx(wanted, rel=1e-12)
    for rank in idle:
        assert found[rank][1][-1].evaluation_loss_sum == 0.0


@pytest.mark.parametrize("replicas", [1, 3])
def test_training_has_the_same_bits_with_and_without_evaluations(replicas: int) -> None:
    plans, held_out = plans_for(replicas)
    with_, without = (run_threads(replicas, train, plans, part) for part in (held_out, None))
    for (one, _), (other, results) in zip(with_, without, strict=True):
        theirs = training.weights_of(other)
        assert all(np.array_equal(w, theirs[name]) for name, w in training.weights_of(one).items())
        assert [r.evaluation_loss_sum for r in results] == [None] * STEPS
        assert all(p.grad is None for p in one.model.weights().values())


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
