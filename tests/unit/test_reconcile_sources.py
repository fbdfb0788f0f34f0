"""What indexing found, in the status of a source that several jobs read."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.api.datasource import DataSourceStatus
from coxswain.wire import SourceReport
from coxswain_operator.pod_decoding import child_view
from coxswain_operator.reconcile import sources
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.context import build_context
from coxswain_operator.settings import Settings
from coxswain_operator.views import ChildView, Manifest, PodView
from tests.unit.fake_cluster import data_mix, data_source, report, training_job

FOUND = SourceReport("code", "code", 1643, 31184220, 7204, 44120, 165001, 1184337, 0, "sha256:1")
GROWN = replace(FOUND, documents=2000, fingerprint="sha256:2")


VERSION = "417"  # of the source as a pass observes it: a write over an edit must meet a conflict


def look(
    source: Manifest, job: str, found: SourceReport, created: float, now: float = 5000.0, since: Manifest | None = None
) -> int:
    """One pass of a job whose coordinator was created then, and has found this; how many writes it made.

    `since`: the source as it was when the job's attempt began.
    """
    manifest = training_job(job)
    manifest["metadata"] |= {"uid": job}
    source["metadata"] |= {"resourceVersion": VERSION}
    children: tuple[ChildView, ...] = ()
    if since is not None:
        begun = build_context(Observed(manifest, (since,), (data_mix(),)), now, Settings()).start
        assert begun is not None
        pin = {"hash": begun.pinned.hash, "images": {"trainers": "t", "data": "d"}}
        manifest["status"] = {"trainers": {"desired": 2, "asked": 2}, "pinned": pin}
        children = (
            child_view({**begun.record(manifest), "metadata": {**begun.record(manifest)["metadata"], "uid": "r"}}),
        )
    pod = PodView(f"{job}-coordinator-0", "c", "coordinator", 0, 0, phase="Running", ready=True, created=created)
    seen = report("Running", 10, sources=(found,))
    observed = Observed(manifest, (source,), (data_mix(),), pods=(pod,), report=seen, children=children)
    writes = sources.statuses(build_context(observed, now, Settings()))
    assert all((w.kind, w.name, w.version) == ("DataSource", "code", VERSION) for w in writes)
    for write in writes:
        DataSourceStatus.model_validate(write.status)
        source["status"] = write.status
    return len(writes)


def test_two_jobs_that_indexed_at_different_times_do_not_write_in_turn() -> None:
    source = data_source()
    writes = [look(source, "early", FOUND, 1000.0) + look(source, "late", GROWN, 2000.0) for _ in range(10)]
    assert writes == [2, *[0] * 9]
    assert (source["status"]["documents"], source["status"]["indexedBy"]) == (2000, "late")


def test_the_coordinator_that_was_created_last_decides_in_any_order() -> None:
    source = data_source()
    assert [look(source, "late", GROWN, 2000.0), look(source, "early", FOUND, 1000.0)] == [1, 0]
    assert look(source, "early", FOUND, 3000.0) == 1  # its coordinator was replaced, and has looked again
    assert (source["status"]["documents"], source["status"]["indexedBy"]) == (1643, "early")


def test_jobs_whose_coordinators_were_created_in_the_same_second_do_not_write_in_turn() -> None:
    source = data_source()
    writes = [look(source, "a", FOUND, 1000.0) + look(source, "b", GROWN, 1000.0) for _ in range(10)]
    assert writes == [2, *[0] * 9]


def test_a_coordinator_that_finds_more_writes_over_what_it_has_written() -> None:
    source = data_source()
    assert [look(source, "a", FOUND, 1000.0), look(source, "a", GROWN, 1000.0)] == [1, 1]
    assert source["status"]["documents"] == 2000


def test_a_coordinator_that_finds_the_same_writes_nothing() -> None:
    source = data_source()
    assert [look(source, "a", FOUND, 1000.0), look(source, "b", FOUND, 2000.0, 9000.0)] == [1, 0]


def test_a_status_of_an_earlier_release_is_taken_over() -> None:
    source = data_source()
    look(source, "a", FOUND, 1000.0)
    del source["status"]["indexedBy"], source["status"]["indexedAt"]
    assert [look(source, "b", GROWN, 900.0), look(source, "b", GROWN, 900.0)] == [1, 0]


def test_what_was_indexed_before_an_edit_is_not_written_as_what_the_edit_gives() -> None:
    source, edited = data_source(), data_source()
    assert look(source, "a", FOUND, 1000.0, since=data_source()) == 1
    edited["spec"]["include"] = "**/*.md"
    edited["metadata"] |= {"generation": 2}
    assert look(edited, "a", FOUND, 1000.0, since=data_source()) == 0
    assert look(edited, "a", GROWN, 2000.0, since=edited) == 1
    assert ready(edited)["observedGeneration"] == 2


def test_the_generation_that_was_indexed_stands_at_ready_alone_since_no_pass_follows_an_edit_of_the_source() -> None:
    """Tools that wait for objects (kstatus, so Flux) wait for ever where status.observedGeneration stays behind."""
    source = data_source()
    look(source, "a", FOUND, 1000.0)
    assert "observedGeneration" not in source["status"] and ready(source)["observedGeneration"] == 1


def ready(source: Manifest) -> Manifest:
    (found,) = source["status"]["conditions"]
    return dict(found)


def test_a_job_that_is_not_valid_says_nothing_of_a_source() -> None:
    """What its pods were started with is not known: the report may be of another spec."""
    manifest = training_job("a", mixRef={"name": "none"})
    manifest["metadata"] |= {"uid": "a"}
    pod = PodView("a-coordinator-0", "c", "coordinator", 0, 0, phase="Running", ready=True, created=1000.0)
    seen = report("Running", 10, sources=(FOUND,))
    ctx = build_context(
        Observed(manifest, (data_source(),), (data_mix(),), pods=(pod,), report=seen), 5000.0, Settings()
    )
    assert ctx.start is None and sources.statuses(ctx) == ()
