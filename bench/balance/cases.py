"""Steps to be placed: families of lengths, numbers of replicas, speeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.problem import Problem, make_problem

K = 1024
CAPACITY = 8 * K
TOKENS = 32 * K  # of a step, per replica: 32M tokens at 1,024 replicas
FEW = 8 * K  # of a short step, for planners that solve integer programs
LARGEST = 12 * K  # replicas, with 256M tokens a step
NODE = 8
TAILED = ("wikipedia", "github", "byted")
CONTEXTS = (256 * K, K * K, 2 * K * K)
MOSTLY_LONG = ("uniform", "video", "documents")
SLOWER = 1.3

Speeds = Literal["equal", "one slow", "unequal"]


def size(context: int) -> str:
    return f"{context // K}K" if context < K * K else f"{context // K // K}M"


@dataclass(frozen=True, slots=True)
class Case:
    """Steps of one family; `tokens` of a step per replica."""

    family: str
    context: int
    replicas: int
    tokens: int = TOKENS
    speeds: Speeds = "equal"

    @property
    def name(self) -> str:
        tokens = f"{self.tokens // K}K tokens a replica" if self.tokens != TOKENS else ""
        speeds = {"one slow": "one slow", "unequal": "unequal speeds"}.get(self.speeds, "")
        return ", ".join(
            filter(None, (f"{self.family} {size(self.context)}", f"N = {self.replicas:,}", tokens, speeds))
        )

    def problem(self, seed: int) -> Problem:
        lengths = draw_lengths(self.family, context=self.context, tokens=self.tokens * self.replicas, seed=seed)
        return make_problem(
            lengths, replicas=self.replicas, capacity=CAPACITY, cost=CostModel(load_constants("h100-80g")),
            speeds=self.rates(seed), max_degree=self.replicas, node_size=NODE,
        )  # fmt: skip

    def rates(self, seed: int) -> list[float]:
        """Speed of each replica: one 1.3 x slow, or each between 0.7 and 1."""
        if self.speeds == "unequal":
            drawn: list[float] = np.random.default_rng(seed).uniform(0.7, 1, self.replicas).tolist()
            return drawn
        return [1 / SLOWER if self.speeds == "one slow" else 1.0] + [1.0] * (self.replicas - 1)


def cases(most: int = LARGEST) -> tuple[Case, ...]:
    """All that have at most so many replicas, each step of them fitting its replicas."""
    short = [Case(f, 64 * K, 64, FEW) for f in TAILED]
    tailed = [Case(f, c, n) for n, f, c in product((64, 256, K), TAILED, CONTEXTS)]
    mostly_long = [
        Case(f, 8 * CAPACITY, n, tokens)
        for n, f, tokens in product((64, 256, K), MOSTLY_LONG, (16 * K, 32 * K, 64 * K))
    ]
    huge = [Case("huge", min(n * CAPACITY // 2, 2 * K * K), n) for n in (64, 256, K)]
    uneven = [
        Case(f, 256 * K, n, speeds=speeds) for n, f, speeds in product((64, 256, K), TAILED, ("one slow", "unequal"))
    ]
    largest = [Case(f, c, LARGEST, 256 * K * K // LARGEST) for f, c in product(TAILED, (256 * K, 2 * K * K))]
    found = (*short, *tailed, *mostly_long, *huge, *uneven, *largest)
    return tuple(case for case in found if case.replicas <= most and case.context <= CAPACITY * case.replicas)
