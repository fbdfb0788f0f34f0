"""A save that is slow is no hang, and one on which no rank gets on is a hang, also at the end of the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from coxswain.config import CheckpointConfig
from coxswain.wire import DeliveredDigests, ShardsSaved, StepDirective
from coxswain_coordinator.state.job_state import MAX_FAILURES
from coxswain_coordinator.state.session import Move, Session
from coxswain_coordinator.world.stalls import LONGEST, SAVE, StallDetector
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import Lead, holds, register, small, training
from tests.unit.coordinator_samples import committed, session

PLACE = "trainer-{0} (node-{0})".format
EVERY = 2


def saving(tmp_path: Path, directed: bool = True) -> Session:
    """A world that has done steps 0 to 3 and is in step 4, at which its second checkpoint is due. Rank 0 has saved the first.

    `directed`: its ranks have their directives from this coordinator.
    """
    job = replace(make_job(tmp_path), checkpoint=CheckpointConfig(uri=tmp_path.as_uri(), every_steps=EVERY))
    found = session(job)
    found.add(committed(*range(8)))
    for step in range(5):
        found.directive(step) if directed else found.begin(step)
    for step in range(5):
        found.book.add_delivered(DeliveredDigests(1, step, ((0, "aa"), (1, "bb"))))
    found.book.open = 4
    save(found, 0, 2)
    return found


def save(world: Session, rank: int, step: int) -> None:
    world.pending.add(ShardsSaved(1, step, rank, 2, (), 1.0))


def judged(
    world: Session,
    seconds: int,
    wrote: Callable[[int], int] = lambda _: 0,
    each: Callable[[int], None] = lambda _: None,
) -> tuple[int, str] | None:
    """The first stall within these seconds of heartbeats, and when. `wrote`: parts that rank 1 has written by then."""
    detector = StallDetector(1800.0)
    for second in range(seconds):
        each(second)
        world.hear(0, float(second), 0)
        world.hear(1, float(second), wrote(second))
        if why := detector.judge(world, [0.1], float(second), PLACE):
            return second, why
    return None


def test_a_rank_that_waits_for_its_save_before_does_not_hang_while_parts_of_it_are_written(tmp_path: Path) -> None:
    """Before, the world was replaced after a minute, again and again, and no checkpoint was ever complete."""
    assert judged(saving(tmp_path), 4000, lambda second: second // 800) is None


def test_a_save_before_of_which_no_part_is_written_is_a_hang_that_names_the_ranks_without_it(tmp_path: Path) -> None:
    found = judged(saving(tmp_path), 4000)
    assert found is not None
    assert found[0] == SAVE + 1
    assert found[1] == (
        "step 4 waits until step 2 is saved, of which no rank has written a part for 901 s (limit 900 s); not done by rank 1 "
        "on trainer-1 (node-1)"
    )


def closed_before(world: Session) -> None:
    world.book.open = 3


def saved_before(world: Session) -> None:
    save(world, 1, 2)


@pytest.mark.parametrize("change", [closed_before, saved_before])
def test_a_step_that_waits_for_no_save_hangs_after_its_minute_whatever_is_written(
    tmp_path: Path, change: Callable[[Session], None]
) -> None:
    """No checkpoint is due at it, or the rank has written what it had to."""
    world = saving(tmp_path)
    change(world)
    found = judged(world, 100, lambda second: second)
    assert found is not None
    assert (found[0], "has not ended for 61 s" in found[1]) == (LONGEST + 1, True)


def test_no_rank_waits_for_a_checkpoint_that_was_due_before_its_world_went_on_from_memory(tmp_path: Path) -> None:
    """The ranks of the world before had that save to write, and no later one writes it."""
    world = saving(tmp_path)
    world.record = replace(world.record, first_step=3)
    world.pending.forget(2)
    found = judged(world, 100)
    assert found is not None
    assert (found[0], found[1].partition(" (")[0]) == (LONGEST + 1, "step 4 has not ended for 61 s")


def test_the_clock_of_a_step_that_waited_for_a_save_runs_once_that_is_written(tmp_path: Path) -> None:
    """Before, the world was replaced in the second in which a save of more than a minute ended."""
    world = saving(tmp_path)

    def ends(second: int) -> None:
        if second == 300:
            save(world, 1, 2)

    found = judged(world, 1000, lambda second: second // 100, ends)
    assert found is not None
    assert (found[0], found[1].partition(";")[0]) == (
        300 + LONGEST,
        "step 4 has not ended for 61 s (limit 60 s)",
    )


def test_a_save_that_was_begun_without_a_directive_counts_too(tmp_path: Path) -> None:
    """Ranks save when due also without a coordinator, and the next one adopts their world."""
    world = saving(tmp_path, directed=False)
    world.adopted = True
    assert judged(world, 800) is None


def stopped(world: Session) -> None:
    world.request_stop(0)
    world.directive(5)


def moved(world: Session) -> None:
    world.move = Move(5, "trainer-2 joined", saves=True)
    world.directive(5)


@pytest.mark.parametrize("end", [stopped, moved])
def test_a_step_before_an_end_that_is_announced_hangs_after_its_minute(
    tmp_path: Path, end: Callable[[Session], None]
) -> None:
    """A rank has asked for the end while a peer hangs in the last step: no save is under way yet."""
    world = saving(tmp_path)
    save(world, 1, 2)
    end(world)
    found = judged(world, 100)
    assert found is not None
    assert (found[0], found[1].partition(" (")[0]) == (LONGEST + 1, "step 4 has not ended for 61 s")


def at_its_end(tmp_path: Path, end: Callable[[Session], None]) -> Session:
    """All steps before the end are closed: its save is all that is left."""
    world = saving(tmp_path)
    end(world)
    world.book.open = 5
    return world


@pytest.mark.parametrize("end", [stopped, moved])
def test_a_last_save_on_which_no_rank_gets_on_is_a_hang_although_all_heartbeats_come(
    tmp_path: Path, end: Callable[[Session], None]
) -> None:
    """Before, it was waited for without end."""
    world = at_its_end(tmp_path, end)
    save(world, 0, 5)
    assert judged(world, 4000) == (
        SAVE + 1,
        "step 5 is not saved, and no rank has written a part for 901 s (limit 900 s); not done by rank 1 on trainer-1 (node-1)",
    )
    assert judged(world, 4000, lambda second: second // 800) is None


def test_a_world_hangs_after_its_minute_where_no_rank_asks_for_a_change_that_will_save(tmp_path: Path) -> None:
    """No rank writes yet, so the quarter of an hour of a save does not count."""
    world = saving(tmp_path)
    save(world, 1, 2)
    world.request_move("trainer-2 joined", saves=True)
    world.book.add_delivered(DeliveredDigests(1, 5, ((0, "aa"), (1, "bb"))))
    world.book.open = 5
    found = judged(world, 100)
    assert found is not None
    assert (found[0], found[1].partition(" (")[0]) == (LONGEST + 1, "step 5 has not ended for 61 s")


@pytest.mark.parametrize("end", [stopped, moved])
def test_a_last_save_that_all_ranks_have_written_waits_for_its_manifest_and_hangs_not(
    tmp_path: Path, end: Callable[[Session], None]
) -> None:
    world = at_its_end(tmp_path, end)
    for rank in range(2):
        save(world, rank, 5)
    assert judged(world, 4000) is None


async def hung_at_the_end(lead: Lead, failures: int = 0) -> None:
    """All steps are done, and the save behind them hangs."""
    await lead.close(0, 1, 2)
    world = lead.state.session
    assert world is not None
    assert world.directive(3) == StepDirective(step=3, checkpoint=True, end="Completed", plan=None)
    lead.state.failures = failures
    lead.state.mark_world_hung("step 3 is not saved")


@pytest.mark.looptime
async def test_the_next_world_saves_again_what_the_one_before_has_not_saved_and_an_event_says_why(
    tmp_path: Path,
) -> None:
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await hung_at_the_end(lead)
        register(lead, *holds(lead, 3))
        await lead.until(lambda: lead.state.generation == 2)
        assert lead.state.session.directive(3).end == "Completed"  # type: ignore[union-attr]
        lead.save(3, 0, 1, end="Completed")
        lead.leave(0)
        assert (await asyncio.wait_for(lead.work, 60)).reason == "StopReached"
        said = [event.message for event in lead.state.events.latest() if event.reason == "WorkerRestarted"]
    assert len(said) == 1
    assert said[0].startswith(
        "step 3 is not saved; the logs of the trainers have the stacks of their ranks; generation 2"
    )


@pytest.mark.looptime
async def test_worlds_whose_last_save_hangs_one_after_another_end_the_job_like_those_that_crash(tmp_path: Path) -> None:
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await hung_at_the_end(lead, MAX_FAILURES - 1)
        finished = await asyncio.wait_for(lead.work, 60)
    assert finished.reason == "WorkerCrashLoop"
    assert "last: step 3 is not saved; the logs of the trainers have the stacks" in finished.message


@pytest.mark.looptime
async def test_reports_and_saves_that_come_behind_the_loss_of_their_world_make_a_checkpoint(tmp_path: Path) -> None:
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        await lead.close(2)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        lead.arrive(left=1)
        await lead.world(2)
        assert lead.state.session.record.first_step == 3  # type: ignore[union-attr]
