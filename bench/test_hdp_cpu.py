"""The figures of bench/hdp_cpu.py, and the control groups of its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cpu_shares import Shares
from bench.hdp_cpu import Result, check_same, summary


def result(balance: str, rate: float, planned: float = 1.0, loss: float = 2.0) -> Result:
    return Result(balance, rate, [planned, planned], [1.0, 1.0], 0.25, [loss, loss])


def test_ratios_are_of_the_same_round_and_errors_of_all_steps() -> None:
    slow, fast = (result("Naive", 50.0, planned=0.8), result("Makespan", 100.0)), (
        result("Naive", 100.0, planned=0.9), result("Makespan", 300.0),
    )  # fmt: skip
    found = summary([slow, fast])
    assert found["Naive"]["tokens/s"] == [50.0, 100.0]
    assert found["Naive"]["makespan over this"] == 2.5 and found["Makespan"]["makespan over this"] == 1.0
    assert found["Naive"]["prediction off by"]["p50"] == pytest.approx(0.15)
    assert found["Naive"]["prediction off by"]["count"] == 4


def test_balances_that_trained_other_steps_are_not_compared() -> None:
    check_same([result("Naive", 1.0), result("Makespan", 1.0, loss=2.0001)])
    with pytest.raises(RuntimeError, match="losses of one step differ"):
        check_same([result("Naive", 1.0), result("Makespan", 1.0, loss=2.01)])


@pytest.mark.parametrize("old", [True, False], ids=["version 1", "version 2"])
def test_each_process_is_in_a_group_with_its_share_of_a_core(tmp_path: Path, old: bool) -> None:
    first = tmp_path / "cpu" if old else tmp_path
    first.mkdir(exist_ok=True)
    if old:
        (first / "cpu.cfs_quota_us").write_text("-1")
    shares = Shares(2, 0.4, tmp_path).__enter__()
    shares.put([7, 8])
    groups = sorted(first.glob("coxswain-bench-*"))
    assert [(g / "cgroup.procs").read_text() for g in groups] == ["7", "8"]
    quota = "cpu.cfs_quota_us" if old else "cpu.max"
    assert [(g / quota).read_text() for g in groups] == ["4000" if old else "4000 10000"] * 2
    weight = "cpu.shares" if old else "cpu.weight"
    assert [(g / weight).read_text() for g in groups] == ["262144" if old else "10000"] * 2
