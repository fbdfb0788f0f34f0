"""What detection and the ladder read of a closed step."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.wire import TaskTiming
from coxswain_coordinator.stragglers.figures import Measured, Numbers, measured, places_of, step_of
from coxswain_coordinator.world.formation import at_checkpoint, next_generation, world_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents, plan, report


def test_besides_tasks_is_what_the_last_operation_of_all_ranks_leaves_of_a_step():
    """A throttled rank computes little, but begins late and adds up slowly: its own wait at the end alone would be 0.1."""
    spans, sums = ((0.0, 1.1), (0.2, 0.9), (0.1, 1.0)), (0.3, 0.1, 0.2)
    timings = [(TaskTiming(0, "F", 0.0, start), TaskTiming(0, "B", start, stop)) for start, stop in spans]
    reports = {r: report(r, 7, reduce_seconds=sums[r], timings=timings[r]) for r in range(3)}
    sequences = tuple(Sequence("code", 0, number, 0, tokens, tokens) for number, tokens in enumerate((12, 5)))
    found = measured(replace(plan(7), sequences=sequences), reports, 1.5)
    assert found == Measured(7, 1.5, pytest.approx(0.4), (12, 5))


def test_without_timings_and_where_clocks_differ_nothing_is_besides_tasks():
    late = (TaskTiming(0, "B", 0.0, 1.6),)
    assert measured(plan(7), {0: report(0, 7, reduce_seconds=0.3)}, 1.5).beside == 0.0
    assert measured(plan(7), {0: report(0, 7, timings=late)}, 1.5).beside == 0.0


def test_trainers_whose_node_is_not_known_have_one_of_their_own_and_others_share_theirs(tmp_path):
    job = make_job(tmp_path, trainers=4)
    record = next_generation(job, 1, "me", agents(4), (), at_checkpoint(job, None))
    found = places_of(record, ["b", "", "b", ""], Numbers())
    assert [place.node for place in found] == [0, 1, 0, 2]
    assert [place.trainer for place in found] == [0, 1, 2, 3]


def test_pods_that_are_replaced_for_ever_leave_no_numbers_behind_and_none_gets_that_of_another(tmp_path):
    job, pods, given = make_job(tmp_path, trainers=4), Numbers(), []
    for world in range(1, 50):
        members = [replace(a, pod=f"{a.pod}-{world}") if a.name == "trainer-1" else a for a in agents(4)]
        record = next_generation(job, world, "me", members, (), at_checkpoint(job, None))
        given.append([place.trainer for place in places_of(record, ["a"] * 4, pods)])
    assert len(pods) == 4
    assert given == [[0, 1 if world == 0 else world + 3, 2, 3] for world in range(49)]


def test_a_step_has_each_ranks_waits_for_peers_and_for_data_and_the_longest_sequence_of_its_replica(tmp_path):
    job = make_job(tmp_path, trainers=2)
    record = next_generation(job, 1, "me", agents(2), (), at_checkpoint(job, None))
    world = world_of(record, agents(2), 320)
    sequences = tuple(Sequence("code", 0, number, 0, tokens, tokens) for number, tokens in enumerate((12, 5)))
    task = Task(0, "pack", (0,), tuple(Slice(0, n, 0, s.tokens) for n, s in enumerate(sequences)), 0.5)
    waits = tuple(TaskTiming(0, kind, 0.0, 1.0, waited) for kind, waited in (("F", 0.1), ("B", 0.2)))
    reports = {0: report(0, 7, timings=waits, data_wait_seconds=0.4)}
    found = step_of(replace(plan(7), sequences=sequences, tasks=(task,)), reports, world.seats, {})
    np.testing.assert_allclose(found.network, [0.3, np.nan])
    np.testing.assert_allclose(found.host, [0.4, np.nan])
    np.testing.assert_allclose(found.longest, [12, np.nan])
