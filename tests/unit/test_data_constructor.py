"""A constructor follows the worlds of its job: it registers before each, and builds for the newest alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from coxswain_data.constructor import Constructor
from coxswain_data.step_cache import StepCache
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.metrics import build
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
        made = Constructor(environment(coordinator.url, 1), client, cache, build("constructor"))
        yield thread.submit(made.follow)
        coordinator.finish(0)
        cache.close()


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
    assert first.instance == second.instance == coordinator.received["/v1/world"][0]["instance"]
    assert [query["after"] for query in coordinator.received["/v1/world"][:1]] == ["0"]


def test_an_end_of_the_job_ends_the_following(coordinator: FakeCoordinator, following: Future[None]) -> None:
    coordinator.finish(3)
    with pytest.raises(JobEnded) as ended:
        following.result(20)
    assert ended.value.finished.exit_code == 3
