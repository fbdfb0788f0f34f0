"""Random kills: any service, any moment, once or twice, in runs of random shape. Part of the long matrix (`make test-slow`)."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.local.jobs import SERVICES, Footprint, Run, find_service, job_objects

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUNS = 20
LATEST = 14.0  # seconds from the start, or from the kill before; a kill that comes after the end is none


def kill_someone(draw, run, cox):
    """SIGKILL to one service of a random kind, if one is alive by then; returns what the run had on the machine."""
    end = time.monotonic() + draw.uniform(0.5, LATEST)
    while time.monotonic() < end and cox.poll() is None:
        time.sleep(0.02)  # the moment is what is drawn; nothing is waited for
    pid = find_service(cox, draw.choice([*SERVICES.values()]))
    if pid is None:
        return None
    footprint = Footprint.of(run, cox)
    with suppress(ProcessLookupError):  # it has just left by itself
        os.kill(pid, signal.SIGKILL)
    return footprint


@pytest.mark.parametrize("seed", range(RUNS))
def test_whoever_dies_whenever_the_stream_is_the_same_and_nothing_is_left(tmp_path, corpus, undisturbed, seed):
    draw = random.Random(seed)
    shape = {"trainers": draw.choice([1, 2, 3]), "loaders": draw.choice([1, 2])}
    run = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", **shape))
    cox = run.start()
    footprints = [kill_someone(draw, run, cox) for _ in range(draw.choice([1, 2]))]
    assert run.finish(cox, 200) == 0, run.output + run.logs()
    assert run.digests() == undisturbed.digests()
    assert run.losses()[-1] == pytest.approx(undisturbed.losses()[-1], rel=1e-4)
    for footprint in filter(None, footprints):
        footprint.assert_gone()
