"""A world without progress is detected; a pause of the coordinator itself is not."""

from __future__ import annotations

import pytest

from coxswain.layout import Device, Seat
from coxswain_coordinator.world.stalls import ARRIVAL, SILENCE, StallDetector, silent, stuck
from tests.unit.coordinator_fakes import make_job
from tests.unit.test_coordinator_parts import report, session

PLACE = "trainer-{0} (node-{0})".format
SEATS = tuple(Seat(rank, Device(rank, 0), rank, 0, 0) for rank in range(2))


def test_a_rank_without_a_heartbeat_is_named():
    heard = {0: 100.0, 1: 100.0 - SILENCE}
    assert silent(SEATS, heard, 0.0, 100.0, PLACE) == ""
    assert silent(SEATS, heard, 0.0, 101.0, PLACE) == "rank 1 on trainer-1 (node-1) has been silent for 31 s"


def test_a_rank_that_has_yet_to_arrive_gets_more_time():
    assert silent(SEATS, {0: ARRIVAL}, 0.0, ARRIVAL, PLACE) == ""
    assert "rank 1" in silent(SEATS, {0: ARRIVAL}, 0.0, ARRIVAL + 1, PLACE)


def test_a_step_may_take_twenty_times_the_median_and_a_minute_in_any_case():
    assert stuck(7, ["0"], [0.1, 0.2], 60.0) == ""
    assert (
        stuck(7, ["0 on a", "1 on b"], [0.1, 0.2], 61.0)
        == "step 7 has not ended for 61 s (limit 60 s); not done by rank 0 on a, 1 on b"
    )
    assert stuck(7, ["0"], [9.0, 10.0, 11.0], 199.0) == ""
    assert "limit 200 s" in stuck(7, list("0123456789"), [11.0, 9.0, 10.0], 201.0)
    assert stuck(7, list("0123456789"), [], 61.0).endswith("not done by rank 0, 1, 2, 3 and 6 more")
    assert stuck(7, [], [], 61.0).endswith("not done by rank none")


def watched(tmp_path):
    found = session(make_job(tmp_path))
    found.begin(0)
    return found, StallDetector()


def test_a_stopped_worker_is_found_by_its_silence_although_no_rank_makes_progress(tmp_path):
    world, watch = watched(tmp_path)
    for second in range(50):
        world.last_heard[0] = float(second)
        if second < 5:
            world.last_heard[1] = float(second)
        if found := watch.judge(world, [0.1], float(second), PLACE):
            break
    assert (second, found) == (35, "rank 1 on trainer-1 (node-1) has been silent for 31 s")


def test_a_hang_with_heartbeats_is_found_by_the_duration_of_its_step(tmp_path):
    world, watch = watched(tmp_path)
    found = []
    for second in range(70):
        world.last_heard = dict.fromkeys(range(2), float(second))
        found.append(watch.judge(world, [0.1], float(second), PLACE))
    assert (
        next(f for f in found if f)
        == "step 0 has not ended for 61 s (limit 60 s); not done by rank 0 on trainer-0 (node-0), 1 on trainer-1 (node-1)"
    )


def test_a_closed_step_starts_the_clock_again(tmp_path):
    world, watch = watched(tmp_path)
    for second in range(100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        world.book.open = second // 50
        world.begin(99)
        assert watch.judge(world, [0.1], float(second), PLACE) == ""


@pytest.mark.parametrize(("between", "found"), [(5.0, 35.0), (5.5, None)])
def test_a_coordinator_that_was_paused_for_more_than_five_seconds_reports_no_rank_as_silent(tmp_path, between, found):
    world, watch = watched(tmp_path)
    world.last_heard = {0: 0.0, 1: 0.0}
    looks = [n * between for n in range(20)]
    assert next((now for now in looks if "silent" in watch.judge(world, [9.0], now, PLACE)), None) == found


def test_a_world_is_looked_at_once_a_second(tmp_path):
    world, watch = watched(tmp_path)
    watch.judge(world, [0.1], 10.0, PLACE)
    world.last_heard = {0: 10.0, 1: -90.0}
    assert watch.judge(world, [0.1], 10.9, PLACE) == ""
    assert "silent for 101 s" in watch.judge(world, [0.1], 11.0, PLACE)


def test_the_next_world_has_its_own_time_to_arrive_and_for_its_first_step(tmp_path):
    before, watch = watched(tmp_path)
    for second in range(0, 400, 4):
        before.last_heard = dict.fromkeys(range(2), float(second))
        watch.judge(before, [9.0], float(second), PLACE)
    after, _ = watched(tmp_path)
    assert watch.judge(after, [0.1], 396.5, PLACE) == ""


def test_a_step_that_has_not_begun_is_not_late(tmp_path):
    world, watch = session(make_job(tmp_path)), StallDetector()
    for second in range(100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        assert watch.judge(world, [0.1], float(second), PLACE) == ""


def test_a_rank_that_has_exited_is_not_reported_as_silent(tmp_path):
    world, watch = watched(tmp_path)
    world.book.add_report(report(0))
    world.last_heard, world.exited = {0: 0.0, 1: 0.0}, {0: 0, 1: 0}
    assert [watch.judge(world, [0.1], float(second), PLACE) for second in range(40)] == [""] * 40
