"""The cache of an informer: which news it takes, and which it refuses as old."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.names import LABEL_JOB, LABEL_JOB_UID
from coxswain_operator.kubernetes.cache import Cache, Entry

NAME = ("lab", "p")


def entry(
    version: int, value: str = "v", uid: str = "u", owner: str = "job", name: tuple[str, str] = NAME
) -> Entry[str]:
    return Entry(name, uid, version, {LABEL_JOB_UID: owner} if owner else {}, value)


def filled(*entries: Entry[str]) -> Cache[str]:
    cache = Cache[str]()
    for one in entries or (entry(5),):
        cache.put(one)
    return cache


def values(cache: Cache[str]) -> list[str]:
    return [e.value for e in cache.select("")]


def drained(queue: Any) -> list[tuple[str, int]]:
    """Kind and version of every change in the queue."""
    found = []
    while not queue.empty():
        event = queue.get_nowait()
        found.append((event.kind, event.entry.version))
    return found


@pytest.mark.parametrize(("version", "taken"), [(4, False), (5, False), (6, True)])
def test_only_a_newer_version_replaces_an_entry(version: int, taken: bool) -> None:
    cache = filled(entry(5, "known"))
    assert cache.put(entry(version, "other")) is taken
    assert values(cache) == ["other" if taken else "known"]
    assert cache.get(NAME) == entry(max(version, 5), "other" if taken else "known")


@pytest.mark.parametrize(("version", "taken"), [(9, False), (10, False), (11, True)])
def test_a_write_that_the_watch_has_passed_is_not_taken(version: int, taken: bool) -> None:
    cache = Cache[str]()
    cache.reach(10)
    assert cache.apply_write(entry(version)) is taken
    assert len(cache) == taken


@pytest.mark.parametrize(("version", "left"), [(4, 1), (5, 0), (6, 0)])
def test_a_deletion_older_than_the_entry_removes_nothing(version: int, left: int) -> None:
    cache = filled(entry(5))
    cache.forget(NAME, version)
    assert len(cache) == left


def test_a_deletion_of_an_unknown_object_changes_nothing() -> None:
    cache = filled()
    cache.forget(("lab", "other"), 9)
    cache.apply_delete(("lab", "other"), "x")
    assert len(cache) == 1


@pytest.mark.parametrize(("version", "left"), [(4, 1), (5, 0)])
def test_a_list_removes_what_it_lacks_unless_that_was_written_after_it(version: int, left: int) -> None:
    cache = filled(entry(5))
    cache.replace(set(), version)
    assert (len(cache), cache.version) == (left, version)


def test_a_list_keeps_what_it_names() -> None:
    cache = filled(entry(5))
    cache.replace({NAME}, 9)
    assert len(cache) == 1


def test_a_late_list_does_not_bring_back_what_was_deleted() -> None:
    cache = filled(entry(5))
    cache.apply_delete(NAME, "u")
    assert not cache.put(entry(5)) and not cache.put(entry(99)) and len(cache) == 0


def test_an_object_of_the_same_name_and_another_uid_comes_after_a_deletion() -> None:
    cache = filled(entry(5))
    cache.apply_delete(NAME, "u")
    assert cache.put(entry(7, uid="next")) and len(cache) == 1


def test_a_deletion_of_an_earlier_uid_leaves_the_object_that_took_its_name() -> None:
    cache = filled(entry(5, uid="next"))
    cache.apply_delete(NAME, "u")
    assert len(cache) == 1


def test_a_deletion_without_a_uid_removes_the_object_of_that_name_and_bars_no_successor() -> None:
    cache = filled(entry(5, uid=""))
    cache.apply_delete(NAME, "")
    assert len(cache) == 0 and cache.put(entry(6, uid=""))


def test_the_latest_deleted_uids_are_remembered_and_the_oldest_is_forgotten() -> None:
    cache = Cache[str](remembered=2)
    for uid in ("a", "b", "c"):
        cache.apply_delete(NAME, uid)
    assert not cache.put(entry(9, uid="c")) and not cache.put(entry(9, uid="b")) and cache.put(entry(9, uid="a"))


def test_after_a_restart_of_versions_every_state_is_newer_and_a_list_removes_what_it_lacks() -> None:
    cache = filled(entry(90), entry(91, name=("lab", "lost")), entry(92, name=("lab", "deleted"), uid="d"))
    cache.apply_delete(("lab", "deleted"), "d")
    cache.reach(95)
    cache.restart()
    assert [e.version for e in (*cache.select(""), *cache.of_owner("job"))] == [0] * 4  # until the list is complete
    assert cache.version == 0
    assert cache.put(entry(7, "restored")) and cache.put(entry(8, name=("lab", "deleted"), uid="d"))
    cache.replace({NAME, ("lab", "deleted")}, 9)
    assert sorted(e.version for e in cache.of_owner("job")) == sorted(e.version for e in cache.select("")) == [7, 8]
    assert cache.version == 9


def test_the_version_never_goes_back() -> None:
    cache = Cache[str]()
    cache.reach(9)
    cache.reach(3)
    cache.replace(set(), 4)
    assert cache.version == 9


def test_an_object_with_a_new_owner_leaves_the_old_ones_listing() -> None:
    cache = filled(entry(5, owner="old"))
    cache.put(entry(6, owner="new"))
    assert list(cache.of_owner("old")) == [] == list(cache.select("", {LABEL_JOB_UID: "old"}))
    assert [e.version for e in cache.of_owner("new")] == [6]
    cache.forget(NAME, 7)
    assert list(cache.of_owner("new")) == []


CHANGES = st.tuples(
    st.sampled_from("pqr"), st.sampled_from(["", "first", "second"]), st.sampled_from(["", "demo", "other"]),
    st.booleans(),
)  # fmt: skip


@given(st.lists(CHANGES, max_size=12))
def test_the_owners_of_a_job_are_those_of_the_objects_that_have_its_name_now(
    changes: list[tuple[str, str, str, bool]],
) -> None:
    cache = Cache[str]()
    for version, (name, owner, job, stays) in enumerate(changes, 1):
        labels = {LABEL_JOB_UID: owner, LABEL_JOB: job}
        cache.put(Entry(("lab", name), f"{name}-{owner}", version, {k: v for k, v in labels.items() if v}, "v"))
        if not stays:
            cache.forget(("lab", name), version)
    for job in ("demo", "other"):
        known = {e.owner for e in cache.select("lab", {LABEL_JOB: job})}
        assert set(cache.owners("lab", job)) == known - {""}
    assert not cache.owners("elsewhere", "demo")


def test_nothing_stays_in_memory_of_owners_and_jobs_that_are_gone() -> None:
    cache, early = Cache[str](), 0
    tracemalloc.start()
    try:
        for n in range(2000):
            for version, job in ((2 * n + 1, f"first-{n}"), (2 * n + 2, f"second-{n}")):
                cache.put(Entry(NAME, "u", version, {LABEL_JOB_UID: job, LABEL_JOB: job}, "v"))
            cache.forget(NAME, 2 * n + 2)
            early = early or tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - early < 30_000  # an empty dictionary for each job takes 128,000
    finally:
        tracemalloc.stop()


def test_a_removed_object_leaves_its_siblings_with_their_owner() -> None:
    cache = filled(entry(5), entry(6, "sibling", "w", name=("lab", "q")))
    cache.forget(NAME, 7)
    assert [e.value for e in cache.of_owner("job")] == ["sibling"]


def test_a_selection_has_the_namespace_and_all_of_the_labels() -> None:
    cache = filled(entry(1), entry(2, "foreign", "x", name=("other", "p")), entry(3, "orphan", "y", "", ("lab", "o")))
    assert values(cache) == ["v", "foreign", "orphan"]
    assert [e.value for e in cache.select("lab")] == ["v", "orphan"]
    assert [e.value for e in cache.select("lab", {LABEL_JOB_UID: "job"})] == ["v"]
    assert list(cache.select("lab", {LABEL_JOB_UID: "job", "more": "x"})) == []
    assert list(cache.select("lab", {"more": "x"})) == []


async def test_a_subscriber_gets_every_change_once_until_it_leaves() -> None:
    cache = filled(entry(1, "before"))
    queue = cache.subscribe()
    cache.put(entry(2, "changed"))
    cache.put(entry(2, "again"))  # no news
    cache.put(entry(3, "changed"))  # only the version moved
    cache.put(entry(4, "changed", uid="next"))
    cache.put(entry(5, "second", "w", name=("lab", "q")))
    cache.forget(NAME, 6)
    assert drained(queue) == [("MODIFIED", 2), ("MODIFIED", 4), ("ADDED", 5), ("DELETED", 4)]
    cache.unsubscribe(queue)
    cache.put(entry(9, "later"))
    assert queue.empty()
