"""SIGKILL at random moments amid changes of the world: of the number of trainers, of layers, after a loss. In the long matrix.

Whatever is killed, the last line of every step is that of a run that nothing disturbs, and nothing stays on the machine.
"""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.jobs import SERVICES, Footprint, Run, find_service, wait_for_step, wait_until, whole_run
from tests.local.living import agents_of, living_job, pod, scale, send, stop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SEEDS = 12
CALM_STEPS = 200
CHANGES = 2  # a pod that fails more than three times within the window of `failurePolicy` restarts the job
LATEST = 1.0  # seconds from what causes a change to the kill
WITHIN = 0.3  # the same from the record of the next world: its workers form groups and move state
VICTIMS = ("worker", "agent", "coordinator")


@pytest.fixture(scope="module")
def calm(tmp_path_factory, corpus):
    """One replica."""
    folder = tmp_path_factory.mktemp("calm")
    return whole_run(folder, living_job(corpus, folder, 1, stop={"steps": CALM_STEPS}).objects)


def replicas(corpus: str, folder: Path) -> Run:
    return living_job(corpus, folder, 2, recovery={"copies": "EveryStep"})


def pipeline(corpus: str, folder: Path) -> Run:
    """Two stages on three trainers, of which one stands by. Two replicas are planned where one of the others is lost."""
    run = living_job(corpus, folder, 3, recovery={"copies": "EveryStep"}, stragglers={"action": "Migrate"})
    run.objects[-1]["spec"]["trainers"] |= {"minCount": 2, "maxCount": 3}
    run.objects[-1]["spec"]["parallelism"]["pipeline"] = 2
    return run


class Changes:
    """One run, what changes its world, and what is killed meanwhile."""

    def __init__(self, run: Run, most: int, draw: random.Random) -> None:
        self._run, self._draw, self._most, self._size = run, draw, most, most
        self.cox: subprocess.Popen[str] = run.start()
        self.footprints: list[Footprint] = []
        self.story: list[str] = []

    def strike(self) -> None:
        """Begins a change, and kills a process before it has ended. Then waits for steps behind both."""
        worlds = self._worlds()
        self.footprints.append(Footprint.of(self._run, self.cox))
        self._draw.choice([self._resize, self._lose_worker, self._lose_pod])()
        if self._draw.random() < 0.5:
            wait_until(lambda: self._worlds() > worlds or self.cox.poll() is not None, "the record of the next world")
            self._kill(self._draw.uniform(0, WITHIN))
        else:
            self._kill(self._draw.uniform(0, LATEST))
        for _ in range(2):  # a step may have been computed before the kill, and be reported only now
            wait_for_step(self._run, self.cox, max(self._run.steps()) + 3)

    def _worlds(self) -> int:
        return len(list(self._run.folder.glob("c/log/generations/*")))

    def _resize(self) -> None:
        self._size = self._most - 1 if self._size == self._most else self._most
        self.story.append(f"scale to {self._size}")
        scale(self._run, self._size)

    def _lose_worker(self) -> None:
        self._hit("worker")

    def _lose_pod(self) -> None:
        trainer = self._draw.randrange(self._size)
        self.story.append(f"kill the pod of trainer {trainer}")
        send(pod(self.cox, trainer), signal.SIGKILL)

    def _kill(self, seconds: float) -> None:
        time.sleep(seconds)  # the moment is what is drawn; nothing is waited for
        self._hit(self._draw.choice(VICTIMS))

    def _hit(self, role: str) -> None:
        if role == "agent":
            pids = sorted(agents_of(pod(self.cox, self._draw.randrange(self._size))))[:1]
        else:
            pids = [pid for pid in [find_service(self.cox, SERVICES[role])] if pid is not None]
        self.story.append(f"kill {role} {pids} at step {max(self._run.steps())}")
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just left by itself
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_with_kills_amid_changes_has_every_step_of_one_without_and_leaves_nothing(tmp_path, corpus, calm, seed):
    draw, shape = random.Random(seed), (replicas, pipeline)[seed % 2]
    run = shape(corpus, tmp_path)
    changes = Changes(run, 2 + seed % 2, draw)
    wait_for_step(run, changes.cox, 5)
    for _ in range(CHANGES):
        try:
            changes.strike()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{changes.story}\n{run.warnings()}\n{run.logs()}") from None
    stop(run, changes.cox)
    digests, losses = run.digests(), run.losses()  # no step is missing
    assert digests[:CALM_STEPS] == calm.digests()[: len(digests)], changes.story
    assert losses[:CALM_STEPS] == pytest.approx(calm.losses()[: len(losses)], rel=1e-5), changes.story
    for footprint in changes.footprints:
        footprint.assert_gone()
