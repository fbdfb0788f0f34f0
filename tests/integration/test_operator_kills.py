"""Real SIGKILLs: of operators at random moments of a job's life, and of the API server and its store under a living operator."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coxswain.api.crd import crds
from tests.children import Child
from tests.integration.apiserver import ApiServer
from tests.integration.audit import created
from tests.integration.lifecycle import LIFE, Stage
from tests.integration.operator_parts import new_namespace
from tests.integration.processes import QUICK, holder, let_go, listening, operator, play

ALL = tuple(chapter.name for chapter in LIFE)
SOME = ("started", "lost", "restarted")  # test_operator_crashes.py crashes one in this process at every write


class SlowStartBatch:
    """Two operators of one namespace: a leader, and one that waits for its end. The killed one is followed by another."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path, seed: int) -> None:
        self._api, self._namespace, self._folder = api, namespace, folder
        self._random, self.kills = random.Random(seed), 0
        self._standing: list[Child] = [self._start(0), self._start(1)]

    def _start(self, number: int) -> Child:
        options = ("--namespace", self._namespace, "--operator-namespace", self._namespace, *QUICK)
        return operator(self._api.kubeconfig, self._folder / f"operator-{number}.log", *options)

    def kill_leader(self) -> None:
        """At a random moment of the next second; not before an operator holds the Lease."""
        self._standing[0].wait_until(self._lease_is_held, deadline=60)
        time.sleep(self._random.uniform(0, 1))  # the moment is what is drawn here
        leader = self._leaders()[0]
        leader.process.kill()
        leader.process.wait()
        let_go(self._api, self._namespace)  # how long a Lease outlives its holder is test_operator_process's business
        self.kills += 1
        self._standing = [c for c in self._standing if c is not leader] + [self._start(self.kills + 1)]

    def _lease_is_held(self) -> bool:
        return bool(self._leaders())

    def _leaders(self) -> list[Child]:
        return [c for c in self._standing if f"{holder(self._api, self._namespace)} is the leader" in c.log.read_text()]

    def stop(self) -> None:
        for child in self._standing:
            child.stop()


@pytest.mark.timeout(300)  # twelve operators are started in the longer one
@pytest.mark.parametrize("chapters", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["four", "ten"])
def test_kills_of_the_operator_change_neither_the_end_nor_what_is_made(
    api: ApiServer, tmp_path: Path, chapters: tuple[str, ...]
) -> None:
    """One in each of these chapters, and two in the first."""
    with listening(api.address) as coordinator:
        quiet = Stage(api, new_namespace(api), coordinator)
        calm = operator(
            api.kubeconfig, tmp_path / "calm.log", "--namespace", quiet.namespace, "--operator-namespace", quiet.namespace
        )  # fmt: skip
        play(quiet)
        calm.stop()
        stage = Stage(api, new_namespace(api), coordinator)
        batch = SlowStartBatch(api, stage.namespace, tmp_path, seed=7)
        try:
            play(
                stage, lambda chapter: [batch.kill_leader() for at in ("started", *chapters) if at == chapter] and None
            )
        finally:
            batch.stop()
    assert batch.kills == len(chapters) + 1
    # It may be one less: what was replaced before it was made.
    assert created(api, stage.namespace) - created(api, quiet.namespace) == Counter()
    assert stage.result() == quiet.result()


@pytest.fixture
def fragile() -> Iterator[ApiServer]:
    """A server that may be killed."""
    with ApiServer() as server:
        server.install(crds())
        yield server


def test_an_operator_outlives_the_death_of_the_api_server_and_of_etcd(fragile: ApiServer, tmp_path: Path) -> None:
    deaths = {"failed": "kube-apiserver", "resumed": "etcd"}

    def meddle(chapter: str) -> None:
        if chapter in deaths:
            fragile.kill(deaths[chapter])
            fragile.revive(deaths[chapter])

    namespace = new_namespace(fragile)
    lease = (
        "--lease-seconds",
        "60",
        "--renew-seconds",
        "50",
    )  # longer than a server takes to come back on a busy machine
    child = operator(
        fragile.kubeconfig, tmp_path / "log", "--namespace", namespace, "--operator-namespace", namespace, *lease
    )  # fmt: skip
    try:
        with listening(fragile.address) as coordinator:
            stage = Stage(fragile, namespace, coordinator)
            play(stage, meddle)
            assert child.process.poll() is None
    finally:
        child.stop()
    assert stage.status["restarts"] == {"counted": 2, "ignored": 2}
    assert all(times == 1 for what, times in created(fragile, namespace).items() if what.startswith("pods/"))
