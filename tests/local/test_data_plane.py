"""Loaders and constructors as processes: what arrives at the workers, and what they survive."""

from __future__ import annotations

import pytest

from tests.local.data_plane import check, data_plane, digests_of


@pytest.mark.parametrize(("loaders", "trainers", "devices"), [(1, 1, 1), (3, 2, 2)])
def test_every_token_arrives_once_and_the_digests_are_those_of_the_documents(tmp_path, loaders, trainers, devices):
    with data_plane(tmp_path, loaders, trainers, devices) as plane:
        plane.coordinator.begin(trainers * devices)
        for step in range(4):
            check(plane, step, plane.receive(step))
            assert plane.coordinator.await_served(step) == digests_of(plane.corpus, step)
