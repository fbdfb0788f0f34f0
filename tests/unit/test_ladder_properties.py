"""What holds for the rung of any view: what is allowed, what is the same, and what a change costs at most."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import get_args

from coxswain.ladder.decide import decide
from coxswain.ladder.values import (
    LEAST_GAIN,
    Action,
    Change,
    Keep,
    Option,
    Options,
    Plan,
    Relayout,
    ReplaceNode,
    Rung,
    View,
)
from tests.unit.ladder_views import DEVICES, HERE, NODES, SLOW, THERE

HEIGHT = {Keep: 0, Plan: 2, Relayout: 2, ReplaceNode: 3}
ALLOWED = {"None": 0, "Warn": 0, "Rebalance": 1, "Migrate": 2, "ReplaceNode": 3}


def height(rung: Rung) -> int:
    return HEIGHT[type(rung)]


def random_view(random: Random) -> View:
    speeds = {d: random.choice([0.0, 0.2, 0.5, 0.8, 0.97]) for d in random.sample(DEVICES, random.randint(0, 3))}
    stay = math.inf if 0.0 in speeds.values() else random.uniform(9, 20)
    kinds = [random.choice(["Layers", "Groups"]) for _ in range(random.randint(0, 3))]
    found = tuple(Option(k, THERE, random.uniform(9, 20), random.uniform(0, 50)) for k in kinds)  # type: ignore[arg-type]
    changes = [Change(random.randint(0, 99), "Groups", frozenset(random.sample(DEVICES, 2))) for _ in range(2)]
    return View(
        action=random.choice(get_args(Action)), step=100, layout=HERE, seconds=random.uniform(1, 20), speeds=speeds,
        planned=random.choice([speeds, {}, {SLOW: 0.5}]), nodes=NODES,
        since={d: random.randint(0, 100) for d in DEVICES}, changes=tuple(changes[: random.randint(0, 2)]),
        options=random.choice([None, Options(HERE, speeds, stay, 9.0, found)]), replace=random.choice([None, 10.0, 300.0]),
    )  # fmt: skip


def test_no_rung_is_above_the_allowed_action_and_the_same_view_gives_the_same_rung() -> None:
    random, seen = Random(0), set()
    for _ in range(3000):
        one = random_view(random)
        rung = decide(one)
        assert height(rung) <= ALLOWED[one.action]
        assert decide(replace(one)) == rung
        seen.add(type(rung))
    assert seen == set(HEIGHT)


def test_no_change_takes_longer_with_its_cost_than_staying_would_over_as_many_steps_as_have_passed() -> None:
    random, judged = Random(1), 0
    for _ in range(3000):
        one = replace(random_view(random), action="Migrate")
        rung = decide(one)
        if isinstance(rung, Relayout) and math.isfinite(rung.gain):
            steps = one.step - min(one.since[d] for d in rung.devices)
            assert steps * (one.seconds - rung.gain) + rung.cost <= steps * one.seconds + 1e-9
            assert rung.gain >= LEAST_GAIN * one.seconds
            judged += 1
    assert judged > 100
