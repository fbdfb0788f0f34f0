"""The short probe on CPU: a quota makes a device slow, other processes do not."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from bench.cpu_shares import Shares
from coxswain_link import cgroup
from coxswain_link.cgroup import CoreShare
from coxswain_train.engine import probe
from coxswain_train.engine.probe import BUSY_SECONDS, Probe, busy_seconds, fastest

OF_PROCESS = "12:cpuset:/\n4:cpu,cpuacct:/kube/pod-1\n0::/kube/pod-1\n"


@pytest.mark.parametrize(
    ("folder", "content", "seconds"),
    [
        ("cpu/kube/pod-1", "nr_throttled 3\nthrottled_time 2500000000\n", 2.5),
        ("cpu,cpuacct/kube/pod-1", "nr_throttled 3\nthrottled_time 2500000000\n", 2.5),
        ("cpu", "throttled_time 2500000000\n", 2.5),  # in a container its own group is the mount
        ("kube/pod-1", "usage_usec 9000000\nthrottled_usec 1500000\n", 1.5),
        ("", "usage_usec 9000000\nthrottled_usec 1500000\n", 1.5),
        ("kube/pod-1", "usage_usec 9000000\n", 0.0),
        ("kube/pod-2", "throttled_usec 1500000\n", 0.0),
    ],
)
def test_the_seconds_that_a_quota_held_a_process_back_are_those_of_its_own_group(
    tmp_path: Path, folder: str, content: str, seconds: float
) -> None:
    (tmp_path / "of_process").write_text(OF_PROCESS)
    (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root" / folder / "cpu.stat").write_text(content)
    assert cgroup.held_back(tmp_path / "root", tmp_path / "of_process") == seconds


def test_a_share_is_what_ran_of_what_could_run_since_the_step_before() -> None:
    ran, held = iter([10.0, 11.0, 11.5, 11.5]), iter([3.0, 4.0, 4.0, 5.0])
    share = CoreShare(lambda: next(held), lambda: next(ran))
    found = []
    for _ in range(3):
        share.step()
        found.append(share.value)
    assert found == [0.5, 1.0, 1.0]


SHARE = """
import time
from coxswain_link.cgroup import CoreShare
input()  # the process is in its group
share, until = CoreShare(), time.process_time() + 0.02
while time.process_time() < until:
    pass
share.step()
print(share.value)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_a_quota_makes_a_process_slow_and_others_that_want_its_processor_do_not() -> None:
    command = [sys.executable, "-c", SHARE]
    with Shares(1, 0.02, period=50_000) as shares:
        children = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(4)]
        shares.put([children[0].pid])
        with ThreadPoolExecutor() as threads:  # all run at the same time
            limited, *others = threads.map(lambda child: float(child.communicate("\n")[0]), children)
    assert limited < 0.2 < 0.5 < min(others)


def test_a_process_that_could_run_half_of_the_time_is_half_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "fastest", lambda _: 3.0)
    assert Probe(torch.device("cpu")).seconds(0.5) == 6.0


def test_a_process_that_only_probes_is_timed_over_periods_of_a_quota_and_the_fastest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe of 0.1 s on the wall, of which the quota lets a quarter run."""
    now, took = [0.0], iter([3.0, 2.0, 4.0, 2.5, 3.5, 1.0])

    def multiply(_: object) -> float:
        now[0] += 0.1
        return next(took)

    monkeypatch.setattr(probe, "fastest", multiply)
    share = CoreShare(lambda: 0.75 * now[0], lambda: 0.25 * now[0])
    cpu = Probe(torch.device("cpu"))
    assert busy_seconds(cpu, share, lambda: now[0]) == pytest.approx(4 * 2.0)
    assert now[0] == pytest.approx(BUSY_SECONDS)
    now[0] = 0.0
    assert next(took) == 1.0
    monkeypatch.setattr(probe, "fastest", lambda _: 3.0)
    assert busy_seconds(cpu, None, iter([0.0, 1.0]).__next__) == 3.0


@pytest.mark.parametrize(("each", "calls"), [(0.0005, 17), (0.004, 4), (0.1, 2)])
def test_the_fastest_of_many_short_rounds_counts_and_few_long_ones_are_run(each: float, calls: int) -> None:
    now, count = [0.0], [0]

    def work() -> None:
        count[0] += 1
        now[0] += each if count[0] == 3 else 1.25 * each

    assert fastest(work, lambda: now[0]) == pytest.approx(each if calls >= 3 else 1.25 * each)
    assert count[0] == calls
