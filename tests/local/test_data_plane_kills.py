"""Kills and restarts loaders and constructors: the stream does not change."""

from __future__ import annotations

import os
import signal

import pytest

from tests.local.data_plane import DataPlane, check, data_plane, digests_of


def kill(plane: DataPlane, name: str) -> None:
    plane.children[name].process.kill()
    plane.children[name].process.wait(10)


@pytest.fixture
def plane(tmp_path):
    with data_plane(tmp_path, loaders=2, devices=2) as plane:
        plane.coordinator.begin(replicas=2)
        yield plane


def expect(plane: DataPlane, step: int) -> None:
    check(plane, step, plane.receive(step))
    assert plane.coordinator.await_served(step) == digests_of(plane.corpus, step)


def test_a_loader_that_is_killed_and_comes_back_is_found_again(plane):
    for step in range(3):
        expect(plane, step)
    kill(plane, "loader-1")
    plane.start_loader(1)
    for step in range(3, 12):
        expect(plane, step)


def test_a_killed_constructor_rebuilds_the_current_step_for_workers_that_stay(plane):
    for step in range(5):
        expect(plane, step)
    with plane.worker(0) as worker:
        worker.receive(1, 4, 0, 60.0)
        plane.coordinator.forgotten = 5
        kill(plane, "trainer-0")
        plane.start_constructor(0)
        assert worker.receive(1, 5, 0, 60.0).step == 5
    for step in range(5, 12):
        expect(plane, step)


def test_the_death_of_every_process_at_once_costs_nothing_but_time(plane):
    expect(plane, 0)
    for name in list(plane.children):
        kill(plane, name)
    for i in range(2):
        plane.start_loader(i)
    plane.start_constructor(0)
    expect(plane, 0)
    expect(plane, 1)


def test_a_stopped_loader_does_not_stop_what_was_built_before(plane):
    plane.receive(0)
    plane.coordinator.await_served(2)
    os.kill(plane.children["loader-0"].process.pid, signal.SIGSTOP)
    os.kill(plane.children["loader-1"].process.pid, signal.SIGSTOP)
    check(plane, 1, plane.receive(1, deadline=10.0))
    check(plane, 2, plane.receive(2, deadline=10.0))
