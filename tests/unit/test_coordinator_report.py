"""What the coordinator's report says beside figures of steps: between worlds, amid an end, and where there is little room."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.termination import TERMINATION_BYTES
from coxswain.wire import Fault, Finished, JobEvent, JobReport, ShardsSaved, SourceReport
from coxswain_coordinator.api.report import job_report, termination_message
from coxswain_coordinator.api.status_page import page
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents, committed, replace_cursors, session
from tests.unit.golden_samples import least
from tests.unit.test_coordinator_checkpoints import manifest
from tests.unit.test_coordinator_figures import Run

SOURCE = SourceReport("code", "code", 3, 30, 9, 10, 11, 12, 0, "sha256:0", 1)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_before_its_first_world_a_resumed_job_is_where_its_checkpoint_is(tmp_path):
    job = make_job(tmp_path)
    state = JobState(job, build("coordinator"), None, lambda: 0.0)
    state.manifest = replace(manifest(job, 6), tokens=77)
    found = job_report(state)
    assert (found.step, found.checkpoint_step, found.tokens) == (6, 6, 77)


def test_a_checkpoint_is_named_by_the_location_without_a_slash_of_its_own(tmp_path):
    """Users paste it into `model.initFrom` and `cox export`: on S3 `a//b` is another key than `a/b`."""
    job = make_job(tmp_path)
    job = replace(job, checkpoint=replace(job.checkpoint, uri="s3://bucket/demo/"))
    state = JobState(job, build("coordinator"), None, lambda: 0.0)
    state.manifest = manifest(job, 6)
    assert job_report(state).checkpoint_uri == f"s3://bucket/demo/{manifest_key_of(state.manifest)}"


def test_lines_of_steps_that_a_new_world_repeats_or_the_store_has_are_not_recorded_again(run):
    for number in range(4):
        run.step(number)
    history = run.state.history
    history.begin_at(3)
    assert [line.step for line in history.before(8)] == [0, 1, 2]
    history.recorded(1)
    assert [line.step for line in history.before(8)] == [1, 2]
    assert [line.step for line in history.before(2)] == [1]


def test_what_remains_is_counted_to_where_the_data_end(run):
    run.session.add(replace_cursors(committed(8, end=9), run.session))
    for number in range(4):
        run.step(number, seconds=10.0)
    assert run.report().eta_seconds == 50


def test_a_job_whose_world_is_lost_starts_again_and_has_no_slow_trainer(run):
    for number in range(5):
        run.step(number)
    assert (run.report().phase, run.report().slow != "") == ("Running", True)
    run.state.mark_world_lost("trainer-1 is gone")
    assert (run.report().phase, run.report().slow) == ("Starting", "")


def test_a_world_that_ends_waits_for_its_workers_to_save(run):
    run.step(0)
    run.session.adopt_end(3, completed=False)
    assert run.report().waiting_for == "workers to save step 3 and leave"


def test_a_change_that_waits_for_a_slow_save_says_so_and_why_the_world_changes(run):
    run.step(0)
    run.session.request_move("trainer-2 shall leave", saves=True)
    assert run.session.directive(1).checkpoint
    why = "for a change: trainer-2 shall leave"
    assert run.report().waiting_for == f"step 1 to be saved by trainer-0 (node-a), trainer-1 (node-b), {why}"
    run.state.add_saved(ShardsSaved(1, 1, 0, 2, (), 0.5, "Moved"))
    assert run.report().waiting_for == f"step 1 to be saved by trainer-1 (node-b), {why}"
    run.state.add_saved(ShardsSaved(1, 1, 1, 2, (), 0.5, "Moved"))
    assert run.report().waiting_for == f"step 1 to be saved by the coordinator, {why}"


def test_a_step_that_waits_for_the_save_before_says_so(tmp_path, run):
    job = make_job(tmp_path)
    run.enter(session(replace(job, checkpoint=replace(job.checkpoint, every_steps=1))))
    run.step(0)
    run.session.directive(1)
    run.step(1)
    run.session.directive(2)
    run.state.add_saved(ShardsSaved(1, 1, 0, 2, (), 0.5))
    assert run.report().waiting_for == "step 1 to be saved by trainer-1 (node-b)"
    run.state.add_saved(ShardsSaved(1, 1, 1, 2, (), 0.5))
    assert run.report().waiting_for == ""


def test_a_world_whose_trainer_still_imports_what_workers_need_says_so(run):
    assert run.report().waiting_for == "workers to begin step 0"
    slow = replace(agents(2)[1], starting=True)
    run.state.registry.register(slow)
    assert run.report().waiting_for == "trainer-1 to import what workers need"
    run.state.registry.register(replace(slow, starting=UNSET))
    assert run.report().waiting_for == "workers to begin step 0"


def test_a_lost_world_whose_trainer_still_imports_what_workers_need_says_so(run):
    """Its agent waits in that world for its workers, and registers behind that."""
    first, slow = agents(2)
    run.state.registry.register(first)
    run.state.registry.register(replace(slow, starting=True))
    run.state.mark_world_lost("rank 1 on trainer-1 has been silent for 300 s")
    run.state.registry.register(first)
    assert run.report().waiting_for == "trainer-1 to import what workers need"
    run.state.registry.register(slow)
    run.state.registry.expect("trainer", "trainer-1")
    assert run.report().waiting_for == "trainer-1 to register (1 of 2 trainers)"


def test_a_fault_of_the_job_counts_before_one_of_the_store(run):
    run.state.store_executor.watch(lambda: "the bucket is gone")
    assert run.report().fault == Fault("StoreAway", "retrying: the bucket is gone", retryable=True)
    run.state.fail(Fault("SourceEmpty", "no objects"))
    assert run.report().fault == Fault("SourceEmpty", "no objects")
    run.state.finish(Finished(Exit.USER_FAULT, "SourceEmpty", "no objects"))
    assert (run.report().phase, run.report().reason, run.report().waiting_for) == ("Failed", "SourceEmpty", "")


def test_a_termination_message_has_the_latest_events_and_without_room_for_one_still_names_slow_trainers():
    events = tuple(JobEvent(n, 0.0, "Resumed", "e" * 200) for n in range(20))
    report = replace(least(JobReport), events=events, slow="trainer-1 computes 2 x as long", fault=Fault("Bad", "no"))
    found = msgspec.json.decode(termination_message(report), type=JobReport)
    assert [event.sequence for event in found.events] == [16, 17, 18, 19]
    large = tuple(replace(event, message="e" * TERMINATION_BYTES) for event in events)
    found = msgspec.json.decode(termination_message(replace(report, events=large)), type=JobReport)
    assert (found.events, found.slow, found.fault) == ((), report.slow, report.fault)


def test_the_page_shows_the_newest_event_first_and_no_markup_of_users():
    events = (JobEvent(0, 0.0, "Resumed", "earlier"), JobEvent(1, 0.0, "Failed", "<script>"))
    text = page("<b>", replace(least(JobReport), events=events, sources=(replace(SOURCE, name="<i>"),)))
    assert text.index("&lt;script&gt;") < text.index("earlier")
    assert not any(markup in text for markup in ("<b>", "<i>", "<script>"))
