"""Which balances plan which steps, in several processes at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context

from bench.balance.cases import FEW, LARGEST, Case
from bench.balance.measure import Sample, measure
from bench.balance.targets import OURS
from coxswain.plan import planners

SLOW: frozenset[str] = planners.SLOW
JUDGED = ("static", "naive", "bytescale")  # rivals that a target names


@dataclass(frozen=True, slots=True)
class Seeds:
    """How many: of ours and of rivals that a target names, of other rivals, and of those that solve integer programs."""

    all: int
    others: int
    slow: int


def run(chosen: Sequence[Case], balances: Sequence[str], seeds: Seeds, jobs: int) -> Iterator[Sample]:
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for samples in pool.map(samples_of, chosen, repeat(tuple(balances)), repeat(seeds)):
            print(samples[0].case.name, file=sys.stderr, flush=True)
            yield from samples


def samples_of(case: Case, balances: Sequence[str], seeds: Seeds) -> list[Sample]:
    return [measure(case, seed, list(planners_of(case, balances, seeds, seed))) for seed in range(seeds.all)]


def planners_of(case: Case, balances: Sequence[str], seeds: Seeds, seed: int) -> Iterator[str]:
    """Ours alone on the largest steps and with unequal speeds, which no target compares."""
    compared = case.replicas < LARGEST and case.speeds == "equal"
    for balance in balances:
        integer = case.tokens == FEW and seed < seeds.slow
        due = integer if balance in SLOW else balance in JUDGED or seed < seeds.others
        if balance == OURS or (compared and due):
            yield balance
