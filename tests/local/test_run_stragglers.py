"""A throttled worker on real processes is found and planned around, and no process is restarted for it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from bench.cpu_shares import Shares
from bench.straggler_cpu import REPLICAS, WITHIN, measure
from tests.local.jobs import write_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root"),
]

# The limit is below what a worker gets of a machine that others use, so that it is one there too.
SMALL = argparse.Namespace(settle=WITHIN, steps=2, share=0.4, slowdown=16.0, longest=256, capacity=256, tokens=2048)
PERIOD = 100_000  # microseconds: of a shorter one no quota may be so small


def test_a_throttled_worker_is_planned_around_within_20_steps_in_the_same_processes(
    tmp_path: Path,
) -> None:
    write_corpus(tmp_path / "corpus")
    with Shares(REPLICAS, SMALL.share, period=PERIOD) as shares:
        found = measure(tmp_path, "ours", shares, SMALL)
    assert found.confirmed is not None and 0 <= found.confirmed < WITHIN
    assert found.planned_around is not None and 0 < found.planned_around <= WITHIN
    assert found.same_processes
