"""Training in any layout equals one plain process, and a checkpoint of any layout resumes in any other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import full_box, window
from coxswain.config import ModelConfig
from coxswain.holdings import all_holdings
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain.plan.head_groups import key_heads
from coxswain.plan.values import Task
from coxswain.wire import Shard
from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.engine.schedule import learning_rate
from tests.distributed import reference, training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads
from tests.layouts import layout_of

STEPS, LARGEST = 20, 12
STREAM = Stream(lengths=(1, 3, 16, 29, 41), vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3, tied_head=True)
Weights = dict[str, np.ndarray]
pytestmark = pytest.mark.timeout(300)  # threads that share a busy machine


class Case(NamedTuple):
    """`equal`: all replicas have this tensor degree and so many stages. Else one has, the others differ as they fit."""

    replicas: int
    tensor: int
    stages: int
    equal: bool
    offload: float
    recompute: Recompute

    @property
    def layout(self) -> Layout | None:
        """None where no world of at most twelve ranks has it."""
        ends = [MODEL.layers * (s + 1) // self.stages for s in range(self.stages)]
        found = [[(self.tensor, end) for end in ends]] * (self.replicas if self.equal else 1)
        if not self.equal and sum(len(r) * self.tensor for r in found) + self.replicas - 1 > LARGEST:
            found = [[(self.tensor, ends[0]), *((1, end) for end in ends[1:])]]
        others = itertools.cycle(([(1, 3)], [(2, 3)], [(1, 2), (1, 3)], [(1, 1), (2, 3)], [(1, 1), (1, 2), (1, 3)]))
        while len(found) < self.replicas:
            room = LARGEST - sum(degree for r in found for degree, _ in r) - (self.replicas - len(found) - 1)
            other = next(o for o in others if sum(degree for degree, _ in o) <= room)
            found.append(other)
        layout = layout_of(*found)
        alike = self.replicas == 1 and not self.equal
        return None if alike or len(layout.ranks()) > LARGEST else layout


def covering() -> list[Case]:
    """Cases in which every possible pair of values occurs, found greedily."""
    values = range(1, 9), (1, 2), (1, 2, 3), (True, False), (0.0, 0.3, 1.0), get_args(Recompute)
    possible = {case: _pairs(case) for case in itertools.starmap(Case, itertools.product(*values)) if case.layout}
    missing = {pair for pairs in possible.values() for pair in pairs}
    chosen = []
    while missing:
        best = max(possible, key=lambda case: len(missing & possible[case]))
        missing -= possible[best]
        chosen.append(best)
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(case), 2))


QUICK = [Case(2, 2, 2, True, 0.3, "None"), Case(3, 2, 2, False, 1.0, "Full"), Case(4, 1, 1, True, 0.0, "Selective")]


@functools.cache
def plain(model: ModelConfig) -> tuple[Weights, list[float]]:
    """Weights and losses after twenty steps of the plain process in fp64."""
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, training.VOCABULARY)}
    weights = reference.initial(model, shapes, training.SEED, torch.float64)
    rates = [learning_rate(training.OPTIMIZER, step, STEPS) for step in range(STEPS)]
    losses = reference.train(model, weights, STREAM, training.OPTIMIZER, rates)
    return {name: w.detach().numpy() for name, w in weights.items()}, losses


def plans_for(layout: Layout) -> list[Plan]:
    """Some of whose rings exchange heads, where all devices have two key heads."""
    replicas, keys = len(layout.replicas), key_heads(MODEL, layout)
    return [random_plan(STREAM.lengths, replicas, seed, layout=layout, key_heads=keys) for seed in range(STEPS)]


def share(ratio: float, _: Task) -> float:
    """Of every task's activations goes to host memory."""
    return ratio


def differences(
    run: Callable[..., Any], layout: Layout, dtype: torch.dtype, model: ModelConfig = MODEL,
    plans: Sequence[Plan] = (), memory: MemoryPolicy | None = None,
) -> tuple[float, float]:  # fmt: skip
    """The largest of any rank's weights, and of the losses, against the plain process."""
    expected, losses = plain(model)
    ranks = run(len(layout.ranks()), training.train, dtype, STREAM, plans or plans_for(layout), model, layout, memory)
    held = all_holdings(parameter_specs(model, training.VOCABULARY), layout, model.layers)
    errors = [
        np.abs(mine[h.box.name] - expected[h.box.name][window(full_box("", expected[h.box.name].shape), h.box)]).max()
        for (mine, _), holdings in zip(ranks, held, strict=True)
        for h in holdings
    ]
    assert all(len(mine) == len(holdings) for (mine, _), holdings in zip(ranks, held, strict=False))
    return float(np.max(errors)), float(np.abs(np.sum([part for _, part in ranks], axis=0) - losses).max())


def of_case(run: Callable[..., Any], case: Case, dtype: torch.dtype) -> tuple[float, float]:
    assert case.layout
    memory = MemoryPolicy(case.recompute, functools.partial(share, case.offload))
    return differences(run, case.layout, dtype, memory=memory)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_twenty_steps_in_fp64_equal_one_plain_process_whatever_the_layout(case: Case) -> None:
    assert max(of_case(run_threads, case, torch.float64)) <= 1e-12


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", covering(), ids=str)
def test_every_pair_of_what_may_differ_trains_over_processes_as_one_plain_process(case: Case) -> None:
    """Replicas, tensor degree, stages, equality, offload and recompute."""
    patient = functools.partial(run_ranks, deadline=400)
    assert max(of_case(patient, case, torch.float64)) <= 1e-12
    assert of_case(patient, case, torch.float32)[0] <= 3e-5


SMALL = [[(1, 3)], [(2, 3)], [(1, 1), (1, 3)], [(2, 2), (2, 3)]]  # replicas
RESUMED = [layout_of(a, b) for a, b in zip(SMALL, [*SMALL[1:], SMALL[0]], strict=True)]


def saved(before: Layout, uri: str) -> tuple[list[Shard], np.ndarray]:
    """A checkpoint after two steps in a layout, and the losses of the two steps after it."""
    plans = plans_for(before)[:4]
    ranks = run_threads(len(before.ranks()), training.save_after, STREAM, plans, MODEL, before, uri, 2)
    return [shard for mine, _ in ranks for shard in mine], np.sum([losses for _, losses in ranks], axis=0)


def resumed(after: Layout, uri: str, shards: Sequence[Shard]) -> np.ndarray:
    """The losses of the two steps after the checkpoint, in another layout."""
    later = dict(enumerate(plans_for(after)[2:4], 2))
    return np.sum(run_threads(len(after.ranks()), training.resume, STREAM, later, MODEL, after, uri, shards), axis=0)


def test_a_checkpoint_of_any_layout_resumes_in_another_with_the_same_losses(tmp_path: Path) -> None:
    """From each layout to the next one."""
    for number, (before, after) in enumerate(itertools.pairwise([*RESUMED, RESUMED[0]])):
        uri = f"file://{tmp_path}/{number}"
        shards, expected = saved(before, uri)
        assert np.allclose(resumed(after, uri, shards), expected, rtol=1e-12, atol=0)


# One device; stages and degrees that rise and fall; replicas that differ; many replicas.
OTHERS = [
    layout_of([(1, 3)]), layout_of([(1, 1), (1, 2), (1, 3)]), layout_of([(1, 1), (2, 3)], [(2, 2), (1, 3)]),
    layout_of([(1, 3)], [(2, 3)], [(2, 2), (2, 3)], [(1, 1), (1, 2), (1, 3)]), layout_of(*[[(1, 3)]] * 8),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("before", range(len(RESUMED + OTHERS)))
def test_a_checkpoint_of_each_layout_resumes_in_every_other_with_the_same_losses(before: int, tmp_path: Path) -> None:
    layouts, uri = RESUMED + OTHERS, f"file://{tmp_path}/checkpoint"
    shards, expected = saved(layouts[before], uri)
    for after, layout in enumerate(layouts):
        assert np.allclose(resumed(layout, uri, shards), expected, rtol=1e-12, atol=0), after
