"""A world without progress is detected; a pause of the coordinator itself is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coxswain.layout import Device, Seat
from coxswain.wire import DeliveredDigests, Evaluation, Fault, WorkerExit
from coxswain_coordinator.state.job_state import MAX_FAILURES, JobState
from coxswain_coordinator.state.session import Hearsay
from coxswain_coordinator.world.stalls import ARRIVAL, DATA, LONGEST, SILENCE, OpenStep, StallDetector, silent, stuck
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import training
from tests.unit.coordinator_samples import committed, session

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
    assert stuck(OpenStep(7, ["0"]), [0.1, 0.2], 60.0) == ""
    assert (
        stuck(OpenStep(7, ["0 on a", "1 on b"]), [0.1, 0.2], 61.0)
        == "step 7 has not ended for 61 s (limit 60 s); not done by rank 0 on a, 1 on b"
    )
    assert stuck(OpenStep(7, ["0"]), [9.0, 10.0, 11.0], 199.0) == ""
    ten = list("0123456789")
    assert "limit 200 s" in stuck(OpenStep(7, ten), [11.0, 9.0, 10.0], 201.0)
    assert stuck(OpenStep(7, ten), [], 61.0).endswith("not done by rank 0, 1, 2, 3 and 6 more")
    assert stuck(OpenStep(7, []), [], 61.0).endswith("not done by rank none")


@pytest.mark.parametrize(
    ("late", "undelivered", "limit"), [(["0"], 3, DATA), (["0"], 0, LONGEST), ([], 3, LONGEST), ([], 0, LONGEST)]
)
def test_ranks_that_wait_for_their_data_do_not_hang_and_lost_digests_of_a_step_that_is_done_do(
    late, undelivered, limit
):
    step = OpenStep(7, late, undelivered)
    assert stuck(step, [0.1], limit) == ""
    assert f"(limit {limit:.0f} s)" in stuck(step, [0.1], limit + 1)
    assert ("3 of its sequences are not delivered" in stuck(step, [0.1], limit + 1)) == bool(undelivered)


START = 1800.0


def watched(tmp_path, planned=range(8), **changes):
    """A world that has done step 0 and is in step 1. `planned`: steps whose plans are committed; `changes`: of these."""
    found = session(make_job(tmp_path))
    found.add(committed(*planned, **changes))
    found.begin(1)
    found.book.open = 1
    found.book.add_delivered(DeliveredDigests(1, 1, ((0, "aa"), (1, "bb"))))
    return found, StallDetector(START)


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
        == "step 1 has not ended for 61 s (limit 60 s); not done by rank 0 on trainer-0 (node-0), 1 on trainer-1 (node-1)"
    )


def test_the_clock_of_a_step_whose_data_comes_late_runs_once_that_is_delivered(tmp_path):
    """Before, the world was replaced in the second in which data came that had taken more than a minute."""
    world, watch = watched(tmp_path)
    world.begin(2)
    world.book.open = 2
    for second in range(1000):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if second == 300:
            world.book.add_delivered(DeliveredDigests(1, 2, ((0, "aa"), (1, "bb"))))
        if found := watch.judge(world, [0.1], float(second), PLACE):
            break
    assert (second, found.partition(";")[0]) == (360, "step 2 has not ended for 61 s (limit 60 s)")


def test_the_clock_of_a_step_whose_plan_comes_late_runs_once_it_has_begun(tmp_path):
    """As behind a planner or a store that took long. Before, the world was replaced in the second in which the step began."""
    world, watch = watched(tmp_path, planned=[0, 1])
    world.book.open = 2
    world.book.add_delivered(DeliveredDigests(1, 2, ((0, "aa"), (1, "bb"))))
    for second in range(1000):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if second == 300:
            world.add(committed(2))
            world.begin(2)
        if found := watch.judge(world, [0.1], float(second), PLACE):
            break
    assert (second, found.partition(";")[0]) == (360, "step 2 has not ended for 61 s (limit 60 s)")


@pytest.mark.parametrize("wished", [False, True], ids=["", "before a change that no rank knows of"])
def test_a_hang_in_a_step_that_ranks_have_begun_alone_is_found(tmp_path, wished):
    """They could not reach the coordinator for 5 s, and the same outage cost them their peers. No rank asks for what it is in, so
    before, the step never counted as begun, and the world hung for ever."""
    world, watch = watched(tmp_path)
    world.book.open = 2
    if wished:
        world.request_move("trainer-2 joined")
    world.book.add_delivered(DeliveredDigests(1, 2, ((0, "aa"), (1, "bb"))))
    assert world.begun == 1
    for second in range(1000):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if found := watch.judge(world, [0.1], float(second), PLACE):
            break
    assert (second, found.partition(";")[0]) == (61, "step 2 has not ended for 61 s (limit 60 s)")


def test_a_hang_in_a_step_that_has_begun_is_found_although_this_coordinator_has_not_read_its_plan(tmp_path):
    world, watch = watched(tmp_path, planned=[0])
    for second in range(1000):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if watch.judge(world, [0.1], float(second), PLACE):
            break
    assert second == 61


@pytest.mark.parametrize("ends", ["Suspended", "Moved"])
def test_a_step_that_no_rank_is_to_begin_is_not_late(tmp_path, ends):
    world, watch = watched(tmp_path)
    world.book.open = 2
    world.book.add_delivered(DeliveredDigests(1, 2, ((0, "aa"), (1, "bb"))))
    world.request_stop(2) if ends == "Suspended" else world.request_move("trainer-2 joined")
    assert world.directive(2).end == ends
    world.mark_saved(2)
    for second in range(1000):
        world.last_heard = dict.fromkeys(range(2), float(second))
        assert watch.judge(world, [0.1], float(second), PLACE) == ""


@pytest.mark.parametrize(("evaluates", "found"), [(False, 61), (True, START + 61)])
def test_a_step_with_an_evaluation_may_take_as_much_longer_as_a_first_step(tmp_path, evaluates, found):
    world, watch = watched(tmp_path, evaluation=Evaluation((), (), (), 0, 0) if evaluates else None)
    for second in range(int(START) + 100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if watch.judge(world, [0.1], float(second), PLACE):
            break
    assert second == found


def test_a_step_whose_like_no_coordinator_has_seen_may_take_as_long_as_a_first_one(tmp_path):
    """A world was adopted right behind a checkpoint: steps of 90 s were taken for hangs, and its workers killed."""
    world, watch = watched(tmp_path)
    world.adopted = True
    for second in range(int(START) + 100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        if found := watch.judge(world, [], float(second), PLACE):
            break
    assert (second, found.partition(";")[0]) == (START + 1, "step 1 has not ended for 1801 s (limit 1800 s)")


@pytest.mark.parametrize(("trainers", "known"), [(2, [0.5]), (1, [])])
def test_durations_of_steps_in_another_layout_say_nothing_of_the_next_ones(tmp_path, trainers, known):
    """Of a world that has shrunk to a thirtieth, every second step was taken for a hang."""
    state = JobState(make_job(tmp_path, min_trainers=1), build("coordinator"), None, lambda: 0.0)
    state.enter_world(session(state.job))
    state.history.durations.append(0.5)
    state.enter_world(session(state.job, trainers))
    assert list(state.history.durations) == known


def test_a_closed_step_starts_the_clock_again(tmp_path):
    world, watch = watched(tmp_path)
    for second in range(100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        world.book.open = 1 + second // 50
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
    world, watch = session(make_job(tmp_path)), StallDetector(START)
    for second in range(100):
        world.last_heard = dict.fromkeys(range(2), float(second))
        assert watch.judge(world, [0.1], float(second), PLACE) == ""


def test_a_rank_that_has_exited_is_not_reported_as_silent(tmp_path):
    world, watch = watched(tmp_path)
    world.last_heard, world.exited = {0: 0.0, 1: 0.0}, {0: 0, 1: 0}
    assert [watch.judge(world, [0.1], float(second), PLACE) for second in range(40)] == [""] * 40


def starting(tmp_path):
    found = session(make_job(tmp_path))
    found.add(committed(*range(8)))
    return found, StallDetector(START)


def judged(world, watch, seconds, each=lambda second: None):
    """The first stall within these seconds of heartbeats, and when; `each` is called every second."""
    for second in range(seconds):
        for rank in range(2):
            world.hear(rank, float(second), 0)
        each(second)
        if why := watch.judge(world, [0.1], float(second), PLACE):
            return second, why
    return None


@pytest.mark.parametrize(("restore", "first_step"), [(75, 20), (10, 55), (600, 300)])
def test_a_slow_restore_or_first_step_is_not_a_hang(tmp_path, restore, first_step):
    world, watch = starting(tmp_path)
    assert judged(world, watch, restore + first_step, lambda s: s == restore and world.directive(0)) is None


def test_a_start_in_which_no_rank_gets_on_is_a_hang_after_its_deadline(tmp_path):
    world, watch = starting(tmp_path)
    second, why = judged(world, watch, 4000)
    assert second == START + 1
    assert why == (
        "the first step has not ended, and no rank has got on with its start for 1801 s (limit 1800 s, "
        "firstStepTimeoutSeconds); not done by rank 0 on trainer-0 (node-0), 1 on trainer-1 (node-1)"
    )


def test_a_start_in_which_a_rank_loads_shards_for_hours_is_not_a_hang(tmp_path):
    world, watch = starting(tmp_path)
    assert judged(world, watch, 9000, lambda s: world.hear(1, float(s), s // 1700)) is None


def test_the_clock_of_a_step_runs_once_the_first_step_of_the_world_has_closed(tmp_path):
    world, watch = starting(tmp_path)

    def close(second):
        if second == 100:
            world.begin(1)
            world.book.open = 1
            world.book.add_delivered(DeliveredDigests(1, 1, ((0, "aa"), (1, "bb"))))

    second, why = judged(world, watch, 400, close)
    assert (second, why.partition(";")[0]) == (161, "step 1 has not ended for 61 s (limit 60 s)")


def test_an_adopted_world_in_which_a_rank_has_reported_has_started(tmp_path):
    world, _ = starting(tmp_path)
    world.adopted = True
    assert not world.started
    world.begin(2)
    assert world.started


def hang(state: JobState) -> None:
    state.session = session(state.job)
    state.mark_world_hung("step 7 has not ended for 61 s (limit 60 s); not done by rank 1 on trainer-1 (node-b)")


def test_worlds_that_hang_one_after_another_end_the_job_like_those_that_crash(tmp_path):
    state = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    for count in range(1, MAX_FAILURES):
        hang(state)
        assert (state.failures, state.fault) == (count, None)
    hang(state)
    assert state.fault.reason == "WorkerCrashLoop"
    assert state.fault.retryable
    assert "rank 1 on trainer-1 (node-b); the logs of the trainers have the stacks" in state.fault.message


def on_hearsay(tmp_path: Path) -> JobState:
    """The last world that may fail, lost by what a peer says."""
    state = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    for _ in range(MAX_FAILURES - 1):
        hang(state)
    state.session = session(state.job)
    state.fail_world("a worker of trainer-0 has lost its peers", Hearsay.LOST_PEER)
    assert (state.failures, state.fault) == (MAX_FAILURES, None)
    return state


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [(1, "WorkerCrashLoop", "rank 1 on trainer-1 ended: no memory"), (2, "BadModel", "no memory")],
)
def test_a_job_that_ends_by_its_failures_names_the_end_that_is_reported_behind_what_a_peer_says(
    tmp_path: Path, code: int, reason: str, says: str
) -> None:
    state = on_hearsay(tmp_path)
    state.add_exit(WorkerExit(state.generation, "trainer-1", 0, 1, code, Fault("BadModel", "no memory")))
    assert state.fault is not None
    assert (state.fault.reason, says in state.fault.message) == (reason, True)


@pytest.mark.looptime
async def test_a_job_that_ends_by_its_failures_waits_for_no_report_once_the_next_world_could_be_formed(
    tmp_path: Path,
) -> None:
    async with training(make_job(tmp_path)) as lead:
        lead.state.failures = MAX_FAILURES - 1
        lead.state.fail_world("a worker of trainer-0 has lost its peers", Hearsay.LOST_PEER)
        assert not await lead.state.notifier.wait_until(lambda: lead.work.done(), 10)
        lead.arrive(left=1)
        finished = await asyncio.wait_for(lead.work, 60)
        assert (finished.reason, lead.state.generation) == ("WorkerCrashLoop", 1)
        assert finished.message.endswith("last: a worker of trainer-0 has lost its peers")
