"""Training in any layout equals one plain process, and a checkpoint of any layout resumes in any other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import full_box, window
from coxswain.config import ModelConfig
from coxswain.holdings import all_holdings
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain_train.engine.memory import MemoryPolicy
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
    every = [Case(*case) for case in itertools.product(range(1, 9), (1, 2), (1, 2, 3), (True, False))]
    possible = [case for case in every if case.layout]
    missing = {pair for case in possible for pair in _pairs(case)}
    chosen = []
    while missing:
        best = max(possible, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(case), 2))


QUICK = [Case(2, 2, 2, True), Case(3, 2, 2, False)]


@functools.cache
def plain(model: ModelConfig) -> tuple[Weights, list[float]]:
    """Weights and losses after twenty steps of the plain process in fp64."""
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, training.VOCABULARY)}
    weights = reference.initial(model, shapes, training.SEED, torch.float64)
    rates = [learning_rate(training.OPTIMIZER, step, STEPS) for step in range(STEPS)]
    losses = reference.train(model, weights, STREAM, training.OPTIMIZER, rates)
    return {name: w.detach().numpy() for name, w in weights.items()}, losses


def plans_for(layout: Layout) -> list[Plan]:
    return [random_plan(STREAM.lengths, len(layout.replicas), seed, layout=layout) for seed in range(STEPS)]


def differences(
    run: Callable[..., Any], layout: Layout | None, dtype: torch.dtype, model: ModelConfig = MODEL,
    plans: Sequence[Plan] = (), memory: MemoryPolicy | None = None,
) -> tuple[float, float]:  # fmt: skip
    """The largest of any rank's weights, and of the losses, against the plain process."""
    assert layout
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


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_twenty_steps_in_fp64_equal_one_plain_process_whatever_the_layout(case: Case) -> None:
    assert max(differences(run_threads, case.layout, torch.float64)) <= 1e-12


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", covering(), ids=str)
def test_every_pair_of_replicas_degree_stages_and_equality_trains_over_processes_as_one_plain_process(
    case: Case,
) -> None:
    patient = functools.partial(run_ranks, deadline=400)
    assert max(differences(patient, case.layout, torch.float64)) <= 1e-12
    assert differences(patient, case.layout, torch.float32)[0] <= 3e-5


SMALL = [[(1, 3)], [(2, 3)], [(1, 1), (1, 3)], [(2, 2), (2, 3)]]  # replicas
RESUMED = [layout_of(a, b) for a, b in zip(SMALL, [*SMALL[1:], SMALL[0]], strict=True)]


def test_a_checkpoint_of_any_layout_resumes_in_any_other_with_the_same_losses(tmp_path: Path) -> None:
    """From each layout to the next one, two steps on each."""
    for number, (before, after) in enumerate(itertools.pairwise([*RESUMED, RESUMED[0]])):
        uri, plans = f"file://{tmp_path}/{number}", plans_for(before)[:4]
        ranks = run_threads(len(before.ranks()), training.save_after, STREAM, plans, MODEL, before, uri, 2)
        shards = [shard for mine, _ in ranks for shard in mine]
        later = dict(enumerate(plans_for(after)[2:4], 2))
        found = run_threads(len(after.ranks()), training.resume, STREAM, later, MODEL, after, uri, shards)
        expected = np.sum([losses for _, losses in ranks], axis=0)
        assert np.allclose(np.sum(found, axis=0), expected, rtol=1e-12, atol=0)
