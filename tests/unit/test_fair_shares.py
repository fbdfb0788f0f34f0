"""Work that several groups of ranks hold, shared so that the highest load of a rank is as low as it can be."""

from __future__ import annotations

import pytest

from coxswain.fair_shares import Holders, balance


def loads(work: list[tuple[int, Holders]], members: list[int]) -> list[float]:
    """What one rank of each group does."""
    weights, found = balance(work, members), [0.0] * len(members)
    for amount, holders in work:
        total = sum(weight * members[group] for group, weight in zip(holders, weights[holders], strict=True))
        for group, weight in zip(holders, weights[holders], strict=True):
            found[group] += amount * weight / total
    return found


@pytest.mark.parametrize(
    ("work", "members", "expected"),
    [
        ([(100, (0, 1)), (20, (0,))], [1, 3], [30, 30]),
        ([(100, (0, 1)), (20, (1,))], [1, 3], [30, 30]),
        ([(90, (0, 1)), (100, (0,))], [1, 3], [100, 30]),
        ([(90, (0, 1)), (100, (0,)), (60, (1, 2))], [1, 3, 1], [100, 37.5, 37.5]),
        ([(60, (1, 2)), (90, (0, 1)), (100, (0,))], [1, 3, 1], [100, 37.5, 37.5]),
        ([(40, (0, 1)), (40, (0, 1)), (10, (1,))], [2, 2], [22.5, 22.5]),
    ],
)
def test_each_rank_does_as_much_as_any_other_that_it_can_take_work_from(
    work: list[tuple[int, Holders]], members: list[int], expected: list[float]
) -> None:
    """By hand. Work that one group alone holds cannot be shared; groups have different numbers of ranks."""
    assert loads(work, members) == pytest.approx(expected, rel=2e-3)
