"""The limits of a process that `cox run` raises or refuses before anything starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coxswain.errors import Refused
from coxswain_cli.limits import check_limits, enough, needs

JOB: dict[str, Any] = {"spec": {"trainers": {"count": 2}}}
NEVER = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "gets"),
    [
        ((64, 64), 64),
        ((65, 64), 65),
        ((24, 64), 64),
        ((24, 255), 255),
        ((24, 999), 256),
        ((24, NEVER), 256),
        ((NEVER, NEVER), NEVER),
        ((24, 63), None),
    ],
)
def test_a_soft_limit_is_raised_to_what_is_needed_and_not_beyond_the_hard_one(
    limits: tuple[int, int], gets: int | None
) -> None:
    assert enough(limits, 64) == gets


def test_more_trainers_and_devices_need_more_and_root_is_bound_by_no_number_of_processes() -> None:
    more: dict[str, Any] = {"spec": {"trainers": {"count": 4, "devicesPerTrainer": 2}}}
    few, many = list(needs(JOB, root=False)), list(needs(more, root=False))
    assert [need.option for need in few] == ["-n", "-v", "-u"]
    assert [need.least for need in few] == [36, 3 << 30, 80]
    assert [need.least for need in many] == [72, 3 << 30, 128]
    assert [need.option for need in needs({"spec": {}}, root=True)] == ["-n", "-v"]


def test_limits_that_are_high_enough_are_left_alone_and_low_ones_raised() -> None:
    written: dict[int, tuple[int, int]] = {}
    found = {resource.RLIMIT_NOFILE: (24, 4096), resource.RLIMIT_AS: (NEVER, NEVER), resource.RLIMIT_NPROC: (80, 80)}
    check_limits(JOB, found.__getitem__, written.__setitem__)
    assert written == {resource.RLIMIT_NOFILE: (144, 4096)}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("-n 24", "`ulimit -n` is 24 open files, and this run needs at least 36"),
        ("-v 2000000", "`ulimit -v` is 2000000 kilobytes of addresses, and this run needs at least 3145728"),
    ],
)
def test_a_limit_that_is_too_low_is_refused_by_its_name_before_anything_starts(
    option: str, said: str, tmp_path: Path
) -> None:
    code = "from coxswain_cli.limits import check_limits; check_limits({'spec': {'trainers': {'count': 2}}})"
    command = ["bash", "-c", f'ulimit {option} && exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_refusal_names_all_limits_and_the_way_out() -> None:
    with pytest.raises(
        Refused, match=r"needs at least 36: raise it, as by `ulimit -n 36` as root; `ulimit -v`"
    ) as refused:
        check_limits(JOB, lambda _: (24, 24), lambda *_: None)
    assert refused.value.reason == "LimitTooLow"
