"""Aligned groups of a power of two for costs that add up: FlexSP's rules, without its micro-batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.flexsp import a100, compare, ends, step
from coxswain.plan.makespan.groups import Rules, fill_groups


def rules_of(rng: random.Random) -> Rules:
    replicas = rng.randint(1, 20)
    linear, square, group = rng.random(), rng.random() * 1e-3, rng.choice((0.0, 50.0))
    degrees = tuple(1 << k for k in range(replicas.bit_length()))
    return Rules(replicas, rng.randint(1, 300), degrees, lambda s, d: (linear * s + square * s * s) / d, group)


@pytest.mark.parametrize("seed", range(40))
def test_groups_hold_every_sequence_once_within_their_tokens_on_aligned_replicas(seed: int) -> None:
    rng = random.Random(seed)
    rules = rules_of(rng)
    longest = rules.capacity * rules.degrees[-1]
    lengths = [rng.randint(1, rng.choice((longest, rules.capacity))) for _ in range(rng.randint(1, 60))]
    tasks = fill_groups(rules, lengths)
    assert sorted(i for task in tasks for i in task.sequences) == [*range(len(lengths))]
    for task in tasks:
        assert sum(lengths[i] for i in task.sequences) <= task.degree * rules.capacity
        assert task.first % task.degree == 0 and task.first + task.degree <= rules.replicas
    assert ends(rules, lengths, tasks) >= rules.bound(lengths) * (1 - 1e-9)


def test_no_replica_of_a_plan_waits_for_another() -> None:
    rules, lengths = a100(), step("github", 0)
    tasks, busy = fill_groups(rules, lengths), np.zeros(64)
    for task in tasks:
        busy[task.first : task.first + task.degree] += rules.time((task.degree, task.sequences), lengths)
    assert ends(rules, lengths, tasks) == pytest.approx(busy.max())


def test_a_step_of_flexsp_is_planned_within_a_fifth_of_the_bound() -> None:
    rules = a100()
    for name, seed in (("wikipedia", 1), ("github", 0), ("byted", 2)):
        lengths = step(name, seed)
        assert ends(rules, lengths, fill_groups(rules, lengths)) <= 1.2 * rules.bound(lengths)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["wikipedia", "github"])
def test_our_plan_is_within_two_percent_of_flexsps_ten_second_programs(name: str) -> None:
    limit = 10.0  # seconds of the programs
    found = [compare(name, seed, limit) for seed in range(2)]
    assert max(r.ours / r.theirs for r in found) <= 1.05
    assert np.median([r.ours / r.theirs for r in found]) <= 1.02
    assert np.median([r.our_planner for r in found]) <= limit / 100  # 0.02 s on a quick machine
