"""A constructor follows the worlds of its job: it registers before each, and builds for the newest alone."""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coxswain import names
from coxswain.wire import Fault
from coxswain_data import constructor
from coxswain_data.constructor import Constructor
from coxswain_data.step_cache import StepCache
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.metrics import build
from coxswain_link.status import StatusServer, serve_status
from tests.fake_coordinator import FakeCoordinator
from tests.unit.agent_fakes import TOKEN, environment, world


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


@pytest.fixture
def cache() -> StepCache:
    return StepCache(2)


@pytest.fixture
def following(coordinator: FakeCoordinator, cache: StepCache) -> Iterator[Future[None]]:
    """A constructor of trainer-1, which ends with the job."""
    with Client(coordinator.url, TOKEN, 20) as client, ThreadPoolExecutor(1) as thread:
        env = dataclasses.replace(environment(coordinator.url, 1), config="demo-config")
        made = Constructor(env, client, cache, build("constructor"))
        yield thread.submit(made.follow)
        coordinator.finish(0)
        cache.close()
        coordinator.wait_until(lambda: not builders())  # one that connects while its client closes leaves a socket open


def builders() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("builder-")}


def test_a_constructor_builds_for_the_newest_world_from_its_first_step_and_no_builder_of_the_one_before_is_left(
    coordinator: FakeCoordinator, cache: StepCache, following: Future[None]
) -> None:
    for generation in (1, 2):
        coordinator.publish(world(generation))
        coordinator.wait_until(lambda: cache.is_open(generation) and builders() == {f"builder-{generation}"})  # noqa: B023  at once
        assert cache.next_step(generation) == 0
    assert cache.next_step(1) is None


def test_a_constructor_registers_before_each_poll_of_the_world_as_one_process(
    coordinator: FakeCoordinator, following: Future[None]
) -> None:
    """A coordinator that restarts knows none, and cuts the poll of one that it does not know short."""
    coordinator.publish(world(1))
    coordinator.wait_until(lambda: len(coordinator.received["/v1/register"]) > 1)
    first, second = coordinator.received["/v1/register"][:2]
    assert (first.role, first.name, first.pod) == ("constructor", "trainer-1", "demo-trainer-1-0")
    assert (first.host, first.port, first.config) == ("127.0.0.1", 0, "demo-config")
    assert first.instance == second.instance == coordinator.received["/v1/world"][0]["instance"]


def test_a_constructor_polls_at_length_for_a_world_behind_the_one_that_it_has(
    coordinator: FakeCoordinator, following: Future[None]
) -> None:
    for generation in (1, 2):
        coordinator.publish(world(generation))
        coordinator.wait_until(lambda: len(coordinator.received["/v1/world"]) == generation)  # noqa: B023  at once
    polls = coordinator.received["/v1/world"]
    assert [query["after"] for query in polls] == ["0", "1"]
    assert all(float(query["wait"]) > 5 for query in polls)


def test_an_end_of_the_job_ends_the_following(coordinator: FakeCoordinator, following: Future[None]) -> None:
    coordinator.finish(3)
    with pytest.raises(JobEnded) as ended:
        following.result(20)
    assert ended.value.finished.exit_code == 3


class Main:
    """What `main` has open while it waits for its trainer to exit, and what it has left once it has returned."""

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.caches = list[StepCache]()
        self.open_while_waiting, self.switch = list[bool](), 1.0
        self.waited = list[float]()
        log = folder / "fault"
        self.env = dataclasses.replace(environment(url, 1), pod_uid=str(folder), termination_log=log)
        self.port = 0
        monkeypatch.setattr(constructor, "serve_status", self._serve_status)
        event = SimpleNamespace(wait=self._wait)
        monkeypatch.setattr(constructor, "threading", SimpleNamespace(Event=lambda: event, Thread=threading.Thread))
        monkeypatch.setattr(constructor, "StepCache", self._cache)

    def run(self) -> int:
        before = sys.getswitchinterval()
        try:
            return constructor.main(self.env)
        finally:
            sys.setswitchinterval(before)

    def open(self) -> list[bool]:
        """Whether workers can connect, whether the status pages answer, and whether the newest world's steps are taken."""
        return [self._hands_over(), self._answers(), any(cache.is_open(1) for cache in self.caches)]

    def _cache(self, *args: Any) -> StepCache:
        self.caches.append(StepCache(*args))
        return self.caches[-1]

    def _serve_status(self, host: str, port: int, *rest: Any) -> StatusServer:
        assert port == names.PORT_CONSTRUCTOR_HTTP
        server = serve_status(host, 0, *rest)
        self.port = server.port
        return server

    def _wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.open_while_waiting, self.switch = self.open(), sys.getswitchinterval()

    def _hands_over(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
            return worker.connect_ex(names.constructor_socket(self.env.pod_uid)) == 0

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=20) as page:
                return bool(page.status == 200)
        except urllib.error.URLError:
            return False


@pytest.fixture
def main(coordinator: FakeCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    return Main(coordinator.url, tmp_path, monkeypatch)


def ended(main: Main, coordinator: FakeCoordinator, code: int) -> int:
    """The exit code of a constructor whose job ends behind its first world."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(main.run)
        coordinator.publish(world(1))
        coordinator.wait_until(lambda: any(cache.is_open(1) for cache in main.caches) or running.done())
        coordinator.finish(code)
        return running.result(60)


def test_a_constructor_serves_on_for_its_trainer_behind_the_end_of_the_job_then_closes_all_that_it_has_open(
    main: Main, coordinator: FakeCoordinator
) -> None:
    """The kubelet restarts a sidecar that exits before the trainer has."""
    assert ended(main, coordinator, 3) == 3
    assert main.open_while_waiting == [True, True, True]
    assert len(main.waited) == 1 and main.waited[0] > 10
    assert main.open() == [False, False, False]
    assert main.env.termination_log is not None and not main.env.termination_log.exists()


def test_a_constructor_ends_with_the_code_and_the_fault_of_its_job(main: Main, coordinator: FakeCoordinator) -> None:
    assert ended(main, coordinator, 2) == 2
    assert main.env.termination_log is not None
    said = msgspec.json.decode(main.env.termination_log.read_bytes(), type=Fault)
    assert said == Fault("Completed", "all steps done")


def test_a_hand_over_does_not_wait_long_for_the_build_of_a_later_step(main: Main, coordinator: FakeCoordinator) -> None:
    """Threads of one process take turns: Python's default turn is ten times as long."""
    ended(main, coordinator, 3)
    assert main.switch < 0.001
