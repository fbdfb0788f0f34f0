"""Random blows: SIGKILL, or SIGSTOP for a while, to any process at any moment, in runs of random shape. Part of the long matrix.

`cox` itself is among them; then the same command is given again.
"""

import random
import signal
import subprocess
import time
from contextlib import suppress
from os import close, pidfd_open

import pytest

from tests.local.jobs import SERVICES, Footprint, Run, find_service, job_objects, whole_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RUNS = 30
STEPS = 24
BLIND = (
    0.3  # how many blows come at some time, not at some step: also before there are steps, or just after another blow
)
LATEST = 4.0  # seconds
LONGEST_PAUSE = 20.0


def objects_in(folder, corpus, **options):
    return job_objects(corpus, f"file://{folder}/checkpoints", stop={"steps": STEPS}, **options)


@pytest.fixture(scope="module")
def calm(tmp_path_factory, corpus):
    """The baseline with so many trainers: only equal shapes sum in the same order."""
    known: dict[int, Run] = {}

    def of(trainers: int) -> Run:
        if trainers not in known:
            folder = tmp_path_factory.mktemp("calm")
            known[trainers] = whole_run(folder, objects_in(folder, corpus, trainers=trainers))
        return known[trainers]

    return of


class Victims:
    """One run, and what is done to its processes."""

    def __init__(self, run: Run, draw: random.Random) -> None:
        self._run, self._draw = run, draw
        self.cox: subprocess.Popen[str] = run.start()
        self.footprints: list[Footprint] = []
        self.story: list[str] = []

    def strike(self) -> None:
        """Kills or pauses one process of a random kind, if there is one."""
        role, how = self._draw.choice([*SERVICES, "cox"]), self._draw.choice(["kill", "kill", "pause"])
        seconds = self._draw.uniform(0.5, LONGEST_PAUSE)
        self._await_moment()
        pid = self.cox.pid if role == "cox" else find_service(self.cox, SERVICES[role])
        if pid is None or self.cox.poll() is not None:
            return
        self.story.append(f"{how} {role} at step {max(self._run.steps(), default=-1)}")
        with suppress(AssertionError):  # no pod is alive yet
            self.footprints.append(Footprint.of(self._run, self.cox))
        with suppress(ProcessLookupError):  # it has just left by itself
            self._hit(pid, how, seconds)
        if role == "cox" and how == "kill":
            self._run.finish(self.cox)
            self.cox = self._run.start()

    def _await_moment(self) -> None:
        blind, fraction, rest = self._draw.random() < BLIND, self._draw.random(), self._draw.uniform(0.2, LATEST)
        done = max(self._run.steps(), default=0)
        target = done + int(fraction * (STEPS - done))
        while not blind and self.cox.poll() is None and max(self._run.steps(), default=-1) < target:
            self._let_pass(0.02)
        self._let_pass(rest if blind else rest / LATEST)

    def _hit(self, pid: int, how: str, seconds: float) -> None:
        handle = pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            if how == "pause":
                self._let_pass(seconds)
                signal.pidfd_send_signal(handle, signal.SIGCONT)
        finally:
            close(handle)

    def _let_pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.cox.poll() is None:
            time.sleep(0.02)  # the moment is what is drawn; nothing is waited for


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_with_random_kills_and_pauses_ends_like_one_without(tmp_path, corpus, calm, seed):
    draw = random.Random(seed)
    trainers, loaders = draw.choice([1, 2, 3]), draw.choice([1, 2])
    expected = calm(trainers)
    run = Run(tmp_path, objects_in(tmp_path, corpus, trainers=trainers, loaders=loaders))
    victims = Victims(run, draw)
    for _ in range(draw.choice([1, 2, 3])):
        victims.strike()
    assert run.finish(victims.cox, 250) == 0, f"{victims.story}\n{run.output}{run.logs()}"
    assert run.digests() == expected.digests(), victims.story
    assert run.losses() == pytest.approx(expected.losses(), rel=1e-5), victims.story
    for footprint in victims.footprints:
        footprint.assert_gone()
