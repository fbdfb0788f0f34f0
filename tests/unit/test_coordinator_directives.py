"""What a world's ranks are to do next: steps, checkpoints, changes, ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from coxswain.config import CheckpointConfig
from coxswain.wire import DeliveredDigests, StepDirective
from coxswain_coordinator.planning.committer import steps_ahead
from coxswain_coordinator.state.session import Session
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import committed, plan, replace_cursors, report, session


def planned(folder: Path, adopted: bool = False) -> Session:
    """A world of two ranks with the plans of eight steps. `adopted`: from a coordinator before."""
    s = session(make_job(folder))
    s.add(committed(*range(8)))
    s.adopted = adopted
    return s


def test_every_rank_gets_the_same_directive_once_its_step_is_planned(tmp_path):
    s = planned(tmp_path)
    assert s.directive(6) is s.directive(6)
    assert s.directive(8) is None


def test_a_stop_takes_the_first_step_that_has_not_begun(tmp_path):
    s = planned(tmp_path)
    s.directive(0), s.directive(1)
    s.request_stop(-1)
    assert (s.directive(1).end, s.directive(2).end, s.directive(2).checkpoint) == ("", "Suspended", True)


def test_a_stop_at_a_step_lets_the_steps_before_it_run(tmp_path):
    s = planned(tmp_path)
    s.request_stop(5)
    assert [s.directive(k).end for k in (4, 5)] == ["", "Suspended"]


def test_the_last_step_of_the_data_is_followed_by_the_end(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(0, 1, 2, end=3))
    assert (s.end_step, s.exhausted, s.directive(3).end, s.directive(3).plan) == (3, True, "Completed", None)


def test_a_change_begins_once_every_rank_has_done_the_steps_before_it(tmp_path):
    found = session(make_job(tmp_path))
    found.add(committed(0, 1))
    found.directive(0)
    found.request_move("another layout")
    assert (found.directive(1).end, found.moved) == ("Moved", False)
    for rank in (0, 1):
        found.book.add_report(report(rank))
    found.book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    assert found.book.close(plan(0), 1.0) is not None and found.moved
    found.request_move("a third layout")
    assert found.move is not None and (found.move.why, found.move.decided) == ("another layout", True)


@pytest.mark.parametrize(
    ("change", "step", "alone"),
    [
        ({}, 2, True),
        ({}, 0, True),  # the first one without a plan
        ({}, 20, False),  # the stop
        ({"adopted": False}, 2, False),
        ({"lost": "a rank ended"}, 2, False),
        ({"ending": StepDirective(5, True, "Suspended", None)}, 2, False),
    ],
)
def test_a_rank_of_an_adopted_world_begins_a_step_alone_that_is_ahead_of_the_plans_and_before_any_end(
    tmp_path, change, step, alone
):
    found = session(make_job(tmp_path))
    for name, value in ({"adopted": True} | change).items():
        setattr(found, name, value)
    assert (found.catching_up(step), found.begun) == (alone, step if alone else -1)


def test_a_stop_behind_the_last_step_is_no_end_of_its_own_and_the_progress_of_a_start_never_falls(tmp_path):
    found = session(make_job(tmp_path))
    found.request_stop(50)
    assert found.known_end == found.end_step == 20
    found.hear(0, 1.0, 5)
    before = found.start_progress
    found.hear(0, 2.0, 3)
    assert found.start_progress == before
    found.begin(0)
    assert found.start_progress == before + 1


@pytest.mark.parametrize(("open_", "ends", "begun"), [(3, False, 3), (20, False, 19), (3, True, 1)])
def test_the_open_step_of_an_adopted_world_may_have_begun_unless_its_end_is_decided(tmp_path, open_, ends, begun):
    found = session(make_job(tmp_path))
    found.adopted, found.book.open = True, open_
    found.begin(1)
    if ends:
        found.adopt_end(5, completed=False)
    assert found.begun == begun


def test_a_lost_world_issues_no_directives(tmp_path):
    s = planned(tmp_path)
    s.lost = "rank 1 ended"
    assert s.directive(0) is None


def test_the_cursor_of_a_requested_checkpoint_is_kept_until_its_manifest_is_made(tmp_path):
    s = session(make_job(tmp_path))
    s.add(replace_cursors(committed(*range(8)), s))
    s.directive(6)
    s.forget_before(8)
    assert sorted(s.cursors) == [6]
    s.mark_saved(6)
    s.forget_before(9)
    assert not s.cursors


def test_plans_of_closed_steps_are_dropped(tmp_path):
    s = session(make_job(tmp_path))
    s.add(replace_cursors(committed(*range(8)), s))
    assert [s.directive(step).plan.step for step in range(8)] == [*range(8)]
    s.forget_before(7)
    assert [plan.step for plan in s.plans_from(0).plans] == [7]
    assert [s.directive(step) is not None for step in range(8)] == [False] * 7 + [True], "a directive holds its plan"
    assert sorted(s.cursors) == [6, 7], "a checkpoint of step 6 may come"


def test_a_world_left_for_a_change_of_the_coordinator_before_is_not_over_before_its_state_is_saved(tmp_path):
    s = session(make_job(tmp_path))
    s.adopt_move(3)
    s.book.open = 3
    assert not s.moved
    s.mark_saved(3)
    assert s.moved


def test_a_rank_follows_its_peers_into_a_change_of_the_coordinator_before_also_where_a_stop_has_come_since(tmp_path):
    """Before, it was sent to its end: its peers waited for the next world, so the stop waited for their exit, half a minute."""
    s = planned(tmp_path, adopted=True)
    s.request_stop(-1)
    s.adopt_move(3)
    assert [s.directive(k).end for k in (3, 3)] == ["Moved", "Moved"]
    assert s.ending is None


@pytest.mark.parametrize(("open_", "wanted"), [(1, 5), (2, 6), (3, 6)])
def test_the_last_plan_waits_for_the_reports_of_the_step_before_the_one_that_runs(tmp_path, open_, wanted):
    s = session(make_job(tmp_path))
    s.begin(2)
    s.book.open = open_
    assert (s.wanted_plans(3, waits=True), s.wanted_plans(3)) == (wanted, 6)


def test_plans_are_needed_for_so_many_steps_after_the_next_one_and_up_to_the_end(tmp_path):
    s = session(make_job(tmp_path, stop_steps=12))
    assert s.needs_plans(1)
    s.add(committed(*range(8)))
    assert [s.needs_plans(ahead) for ahead in (8, 9)] == [False, True]
    s.begin(0)
    assert [s.needs_plans(ahead) for ahead in (7, 8)] == [False, True]
    s.lost = "rank 1 ended"
    assert not s.needs_plans(8)
    s.lost = ""
    s.add(committed(*range(8, 12)))
    assert not s.needs_plans(99)


def test_eight_plans_at_a_time_are_given_from_a_step_on(tmp_path):
    s = session(make_job(tmp_path))
    assert s.plans_from(0) is None
    s.add(committed(*range(10)))
    assert [p.step for p in s.plans_from(1).plans] == list(range(1, 9))
    assert [p.step for p in s.plans_from(9).plans] == [9]
    assert s.plans_from(10) is None


@pytest.mark.parametrize(("every", "saved", "due"), [(6, 0, [6]), (3, 3, [6]), (3, 2, [3, 6]), (0, 0, [])])
def test_a_checkpoint_is_due_at_multiples_that_are_not_saved(tmp_path, every, saved, due):
    s = session(make_job(tmp_path, checkpoint=CheckpointConfig(uri="x", every_steps=every)))
    s.add(committed(*range(8)))
    s.mark_saved(saved)
    assert [k for k in range(8) if s.directive(k).checkpoint] == due


def test_the_earliest_of_several_stops_counts_and_the_first_end(tmp_path):
    s = planned(tmp_path)
    for step in (6, 4, 5):
        s.request_stop(step)
    assert s.stop_at == 4
    s.adopt_end(5, completed=True)
    s.adopt_end(7, completed=False)
    assert (s.ending.step, s.ending.end, s.end_step) == (5, "Completed", 5)


def test_plans_reach_eight_steps_or_thirty_seconds_ahead():
    assert [steps_ahead(seconds) for seconds in (0.0, 60.0, 3.0, 1.0, 0.01)] == [8, 8, 10, 30, 256]


def test_a_new_coordinator_ends_at_the_step_at_which_a_rank_has_ended(tmp_path):
    s = planned(tmp_path)
    s.adopt_end(4, completed=False)
    assert (s.directive(4).end, s.directive(4).checkpoint, s.directive(3).end) == ("Suspended", True, "")


def test_an_exit_without_a_pending_save_ends_the_job_at_the_last_checkpoint(tmp_path):
    s = session(make_job(tmp_path))
    s.mark_saved(6)
    s.adopt_end(s.pending.newest(0) or s.saved, completed=True)
    assert (s.ending.step, s.ending.end, s.saved_end, s.end_step) == (6, "Completed", True, 6)


def test_a_stop_of_an_adopted_world_spares_the_open_step_that_may_have_begun(tmp_path):
    s = planned(tmp_path, adopted=True)
    s.begin(1)
    s.book.open = 2
    s.request_stop(-1)
    assert s.place(0, 1) and s.place(1, 1)
    assert [s.directive(k).end for k in (2, 3)] == ["", "Suspended"]


@pytest.mark.parametrize(
    ("ends", "end"),
    [(lambda s: s.request_stop(-1), "Suspended"), (lambda s: s.request_move("a trainer joined"), "Moved")],
)
@pytest.mark.parametrize("word", [True, False])
def test_an_adopted_world_ends_before_no_step_that_a_rank_has_begun_while_it_reached_no_coordinator(
    tmp_path, ends, end, word
):
    """Before, its peer was stopped there: the rank lost it after 30 s, and the world was replaced. `word`: of the
    other rank, which else has ended."""
    s = planned(tmp_path, adopted=True)
    ends(s)
    assert s.place(0, 2) and not s.place(0, 2)
    assert s.directive(3) is None, "the other rank may have begun it"
    if word:
        s.place(1, 1)
    else:
        s.exited[1] = -9
    assert [s.directive(k).end for k in (2, 3)] == ["", end]


def test_a_world_of_this_coordinator_ends_without_the_word_of_its_ranks(tmp_path):
    s = planned(tmp_path)
    s.request_stop(-1)
    assert s.directive(0).end == "Suspended"


def test_a_rank_follows_its_peers_into_a_decided_change_of_an_adopted_world_whatever_is_known_of_the_others(tmp_path):
    s = planned(tmp_path, adopted=True)
    s.adopt_move(3)
    assert s.directive(3).end == "Moved"


def test_a_change_of_the_coordinator_before_goes_before_one_that_no_rank_knows_of(tmp_path):
    s = planned(tmp_path, adopted=True)
    s.begin(4)
    s.request_move("trainer-2 joined")
    s.adopt_move(4)
    assert (s.move.step, s.directive(4).end) == (4, "Moved")


def test_a_pause_of_the_coordinator_makes_no_rank_heard_later_than_now(tmp_path):
    s = session(make_job(tmp_path))
    s.hear(0, 4.0, 0)
    s.hear(1, 9.0, 0)
    s.forgive(10.0, 3.0)
    assert s.last_heard == {0: 7.0, 1: 10.0}


def test_ranks_probe_before_the_step_that_begins_next_alone(tmp_path):
    """What was asked before the steps behind it is dropped, else each step of a long run stays."""
    s = planned(tmp_path)
    asked = iter([{1}, set(), set()])
    s.take_probes = lambda: frozenset(next(asked))

    def probes(step: int) -> list[object]:
        return [s.part_of(s.directive(step), s.cut_of_rank(rank), rank).probe for rank in (0, 1)]

    assert probes(0) == [UNSET, True]
    assert probes(1) == probes(0) == [UNSET, UNSET]
