"""Two runs never use one checkpoint location at once; what a killed run leaves behind delays the next one and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import CheckpointConfig
from coxswain.errors import Refused, Stale
from coxswain.names import CLAIMS_ROOT
from coxswain.uris import file_uri
from coxswain_coordinator.__main__ import claim_of
from coxswain_coordinator.checkpoint.claim import LEASE_SECONDS, RENEW_SECONDS, Claim, LiveRun, key_of
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.planning.placers import place_step
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.environment import Environment
from coxswain_link.metrics import build
from coxswain_link.store import CorruptObject, Store, open_store
from tests.unit.coordinator_fakes import make_job
from tests.unit.test_coordinator_checkpoints import manifest, store_with

OTHER = LiveRun("team/other", "u2", "other-coordinator-1", "host-b, /runs/other", 7)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(file_uri(tmp_path), create=True)


class Time:
    """Passes at once. `during` happens in each sleep."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.passed, self._during = 0.0, during

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self._during()


def put(store: Store, run: LiveRun) -> None:
    store.put(key_of(run.uid), msgspec.json.encode(run))


def claim(store: Store, time: Time, renew: float = RENEW_SECONDS) -> Claim:
    return Claim(
        store, LiveRun("default/demo", "u1", "demo-coordinator-0", "host-a, /runs/demo"), renew, sleep=time.sleep
    )


def keys(store: Store) -> list[str]:
    return [o.path for o in store.list("live/")]


async def test_a_location_that_no_run_uses_is_claimed_at_once_and_free_after_the_release(store: Store) -> None:
    time = Time()
    mine = claim(store, time)
    assert await mine.acquire(StoreExecutor()) is False
    assert (keys(store), time.passed) == ([key_of("u1")], 0.0)
    await mine.release()
    assert keys(store) == []


async def test_a_run_that_ends_before_it_claims_its_location_leaves_it_as_it_is(store: Store) -> None:
    put(store, replace(OTHER, uid="u1"))
    await claim(store, Time()).release()
    assert keys(store) == [key_of("u1")]


async def test_a_location_whose_run_is_alive_is_refused_with_the_name_of_that_run(store: Store) -> None:
    put(store, OTHER)
    time = Time(lambda: put(store, replace(OTHER, renewals=8)))
    mine = claim(store, time)
    with pytest.raises(Refused) as refused:
        await mine.acquire(StoreExecutor())
    await mine.release()
    assert refused.value.reason == "CheckpointInUse"
    assert "in use by the run of team/other (uid u2, other-coordinator-1 on host-b, /runs/other)" in str(refused.value)
    assert (time.passed < RENEW_SECONDS, keys(store)) == (True, [key_of("u2")])


async def test_the_claim_of_a_killed_run_is_deleted_once_its_lease_is_over(store: Store) -> None:
    put(store, OTHER)
    waited: list[str] = []
    time = Time()
    mine = claim(store, time)
    assert await mine.acquire(StoreExecutor(), waited.append) is True
    assert (time.passed, keys(store)) == (LEASE_SECONDS, [key_of("u1")])
    assert ["team/other (host-b, /runs/other)" in waited[0], waited[-1]] == [True, ""]
    await mine.release()


async def test_a_run_that_ends_meanwhile_makes_way_at_once(store: Store) -> None:
    put(store, OTHER)
    time = Time(lambda: store.delete(key_of("u2")))
    mine = claim(store, time)
    assert await mine.acquire(StoreExecutor()) is True
    assert time.passed < RENEW_SECONDS
    await mine.release()


async def test_a_coordinator_that_replaces_another_of_its_job_does_not_wait_for_it(store: Store) -> None:
    put(store, replace(OTHER, uid="u1"))
    time = Time()
    mine = claim(store, time)
    assert await mine.acquire(StoreExecutor()) is False
    assert time.passed == 0.0
    await mine.release()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_second_run_that_waits_for_its_claim_neither_ends_nor_delays_the_next_coordinator_of_the_first(
    store: Store, alive: bool
) -> None:
    waiting = replace(OTHER, waits=True)
    put(store, waiting)
    time = Time(lambda: put(store, replace(waiting, renewals=8)) if alive else None)
    put(store, replace(OTHER, uid="u1"))
    mine = claim(store, time)
    assert await mine.acquire(StoreExecutor()) is False
    assert time.passed == 0.0
    await mine.release()


async def test_the_next_coordinator_of_a_run_that_only_waited_waits_as_well(store: Store) -> None:
    for uid in ("u1", "u2"):
        put(store, replace(OTHER, uid=uid, waits=True))
    mine = claim(store, Time(lambda: put(store, replace(OTHER, renewals=8))))
    with pytest.raises(Refused, match="in use by the run of team/other"):
        await mine.acquire(StoreExecutor())
    await mine.release()


async def test_a_run_that_has_taken_the_place_of_another_meanwhile_is_looked_at_by_the_next_coordinator(
    store: Store,
) -> None:
    put(store, replace(OTHER, uid="u1"))
    put(store, OTHER)
    mine = claim(store, Time(lambda: put(store, replace(OTHER, renewals=8))))
    with pytest.raises(Refused, match="in use by the run of team/other"):
        await mine.acquire(StoreExecutor())
    await mine.release()


async def test_a_run_says_that_it_waits_until_it_holds_the_claim(store: Store) -> None:
    put(store, OTHER)
    said: list[bool] = []
    mine = claim(store, Time(lambda: said.append(written(store).waits is True)))
    await mine.acquire(StoreExecutor())
    assert (set(said), written(store).waits) == ({True}, UNSET)
    await mine.release()


@pytest.mark.looptime
async def test_a_run_counts_from_the_checkpoint_that_was_made_while_it_waited_for_its_claim(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    store = store_with(job)

    def ends() -> None:
        store_with(job, manifest(job, job.stop_steps))
        store.delete(key_of(OTHER.uid))

    put(store, OTHER)
    state = JobState(job, build("coordinator"), None, lambda: 0.0)
    state.store_executor = AtOnce()
    mine = claim(store, Time(ends))
    finished = await asyncio.wait_for(Driver(state, store, place_step, "one", claim=mine).drive(), 60)
    assert finished.reason == "StopReached"
    await mine.release()


class SlowRenewal(StoreExecutor):
    """The first renewal's write goes out late, as one does that the store refuses at first."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_out = asyncio.Event(), asyncio.Event()

    async def __call__(self, work, *args, **kwargs):
        if work.__name__ == "put" and msgspec.json.decode(args[1], type=LiveRun).renewals == 2:
            self.begun.set()
            await self.goes_out.wait()
        return work(*args, **kwargs)


@pytest.mark.looptime
async def test_a_renewal_that_is_late_does_not_replace_what_was_written_behind_it(store: Store) -> None:
    put(store, OTHER)
    call = SlowRenewal()

    async def until_the_renewal(seconds: float) -> None:
        await call.begun.wait()

    run = replace(OTHER, uid="u1", renewals=0)
    mine = Claim(store, run, renew=1.0, sleep=until_the_renewal)
    acquired = asyncio.create_task(mine.acquire(call))
    await asyncio.wait([acquired], timeout=RENEW_SECONDS)
    call.goes_out.set()
    await acquired
    await asyncio.sleep(0)  # a write that was held has gone out
    assert written(store).waits is UNSET
    await mine.release()


@pytest.mark.looptime
async def test_a_renewal_that_is_late_does_not_bring_a_released_claim_back(store: Store) -> None:
    run, call = replace(OTHER, uid="u1", renewals=0), SlowRenewal()
    put(store, run)
    mine = Claim(store, run, renew=1.0)
    await mine.acquire(call)
    await call.begun.wait()
    released = asyncio.create_task(mine.release())
    await asyncio.sleep(1)
    call.goes_out.set()
    await released
    await asyncio.sleep(1)
    assert keys(store) == []


def written(store: Store) -> LiveRun:
    return msgspec.json.decode(store.get(key_of("u1")), type=LiveRun)


async def test_a_claim_is_renewed_while_it_is_held_and_not_written_after_its_release(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, renewed, put = asyncio.get_running_loop(), asyncio.Event(), store.put

    def counted(key: str, data: bytes) -> None:
        put(key, data)
        if msgspec.json.decode(data, type=LiveRun).renewals == 5:
            loop.call_soon_threadsafe(renewed.set)

    monkeypatch.setattr(store, "put", counted)
    mine = claim(store, Time(), renew=0.001)
    await mine.acquire(StoreExecutor())
    await renewed.wait()
    await mine.release()
    assert keys(store) == []


@pytest.mark.parametrize("data", [b"[]", b'{"job": "\xff"}', b"[" * 100_000, b""])
async def test_an_object_that_is_no_record_of_a_run_is_no_claim(store: Store, data: bytes) -> None:
    store.put(key_of("u3"), data)
    mine = claim(store, Time())
    assert await mine.acquire(StoreExecutor()) is False
    await mine.release()


async def test_a_damaged_object_is_no_claim(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 keeps digests of what is written; its object does not match any more."""
    put(store, OTHER)
    get = store.get

    def damaged(key: str) -> bytes:
        if key == key_of("u2"):
            raise CorruptObject(key)
        return get(key)

    monkeypatch.setattr(store, "get", damaged)
    mine = claim(store, Time())
    assert await mine.acquire(StoreExecutor()) is False
    await mine.release()


@pytest.mark.parametrize(
    ("uri", "claimed"),
    [("s3://runs/demo", True), (f"file://{CLAIMS_ROOT}/data/runs", True), ("file:///home/me/runs", False)],
)
def test_locations_that_other_machines_reach_are_claimed(store: Store, tmp_path: Path, uri: str, claimed: bool) -> None:
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=uri))
    environment = Environment(
        name="coordinator",
        index=0,
        coordinator_url="",
        job=job,
        token="",
        pod_name="demo-coordinator-0",
        pod_ip="",
        pod_uid="",
    )
    assert (claim_of(environment, store) is not None) == claimed


@pytest.mark.looptime
@pytest.mark.parametrize("waits", [UNSET, True])
async def test_a_run_that_was_stopped_for_its_lease_does_not_bring_back_a_claim_that_another_run_has_ended(
    store: Store, waits: bool | msgspec.UnsetType
) -> None:
    """On a machine that slept. `waits`: the other has not said yet that it holds the location."""
    mine = Claim(store, replace(OTHER, uid="u1", renewals=0))
    await mine.acquire(AtOnce())
    store.delete(key_of("u1"))
    put(store, replace(OTHER, waits=waits))
    await asyncio.sleep(RENEW_SECONDS + 1)
    with pytest.raises(Stale, match=r"was taken by the run of team/other \(uid u2, .* on host-b, /runs/other\)"):
        mine.check()
    await mine.release()
    assert keys(store) == [key_of("u2")]


@pytest.mark.looptime
async def test_a_claim_that_is_gone_where_no_other_run_is_comes_back(store: Store) -> None:
    mine = Claim(store, replace(OTHER, uid="u1", renewals=0))
    await mine.acquire(AtOnce())
    store.delete(key_of("u1"))
    await asyncio.sleep(RENEW_SECONDS + 1)
    mine.check()
    assert keys(store) == [key_of("u1")]
    await mine.release()


@pytest.mark.looptime
async def test_a_renewal_that_fails_as_nothing_expects_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Claim(store, replace(OTHER, uid="u1", renewals=0))
    await mine.acquire(AtOnce())

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(store, "put", fail)
    await asyncio.sleep(RENEW_SECONDS + 1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        mine.check()
    await mine.release()
    assert keys(store) == []


async def test_a_coordinator_that_is_replaced_does_not_release_the_claim_of_its_successor(store: Store) -> None:
    first = Claim(store, replace(OTHER, uid="u1", renewals=0))
    await first.acquire(AtOnce())
    second = Claim(store, replace(OTHER, uid="u1", renewals=0, coordinator="other-coordinator-2"))
    await second.acquire(AtOnce())
    await first.release()
    assert keys(store) == [key_of("u1")]
    await second.release()
    assert keys(store) == []


class AtOnce(StoreExecutor):
    async def __call__(self, work, *args, **kwargs):
        return work(*args, **kwargs)
