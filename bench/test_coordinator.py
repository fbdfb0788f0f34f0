"""What the bench of the coordinator measures, at small size."""

import asyncio
import json
from dataclasses import replace

import pytest

from bench.coordinator import TARGETS, Figures, describe, figures, measure, percentile
from bench.coordinator_members import Members
from bench.coordinator_server import Shape

SMALL = Shape(ranks=4, devices=2, sequences=40, steps=2, step_seconds=0.05)


@pytest.mark.timeout(120)
def test_ranks_of_a_small_job_do_their_steps_and_none_is_alone(tmp_path):
    found = asyncio.run(measure(SMALL, tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert (found.ranks, found.steps, found.ranks_alone) == (4, 2, 0)
    assert 0 < found.plan_kilobytes_mean <= found.plan_kilobytes_largest < 10
    assert found.requests_a_second > 0
    assert found.cpu_share > 0
    assert found.peak_mebibytes > 20


@pytest.mark.timeout(60)
def test_a_rank_whose_coordinator_is_gone_is_counted_as_alone():
    async def play() -> int:
        members = Members(SMALL, port=9)  # a port on which nothing listens
        async with members.session():
            rank = members.rank(3)
            rank.plans.add(0)
            await members.directive(rank, 0)
        return members.alone

    assert asyncio.run(play()) == 1


def test_figures_are_those_between_the_two_ends_of_the_measured_steps(tmp_path):
    (tmp_path / "store/log/placements").mkdir(parents=True)
    (tmp_path / "store/log/placements/0.zst").write_bytes(b"x" * 1500)
    members = Members(SMALL, port=9)
    members.window = [(10.0, 1.0), (20.0, 3.0)]
    members.plan_bytes.update({(0, 0): 1000, (1, 0): 3000})
    found = figures(SMALL, members, [(5.0, 9.0), (12.0, 0.001), (13.0, 0.005), (25.0, 9.0)], tmp_path, 99.0)
    assert (found.cpu_share, found.lag_largest_milliseconds) == (0.2, 5.0)
    assert (found.plan_kilobytes_mean, found.plan_kilobytes_largest, found.placement_kilobytes_largest) == (
        2.0,
        3.0,
        1.5,
    )


@pytest.mark.parametrize("name", TARGETS)
def test_a_missed_target_is_named(name):
    met = Figures(1, 1, 1.0, 1, 0.2, 1.0, 64.0, 1.0, 0, 1.0, 1.0, 1.0, 0.0, 1.0)
    assert describe(met).endswith("targets met")
    assert describe(replace(met, **{name: TARGETS[name] + 1})).endswith(f"missed: {name}")


def test_a_percentile_is_a_value_that_was_measured():
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert percentile([], 0.99) == 0.0
