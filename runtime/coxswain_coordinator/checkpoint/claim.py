"""Keeps two runs from using one checkpoint location at once: each run that uses it renews an object there.

A run that starts and finds another run's object waits until that is renewed (then the other run is alive, and this one is
refused) or `LEASE_SECONDS` are over (then its process is gone). No clocks are compared. A run writes its own object before
it looks for others, so of two runs that start together at least one is refused. A coordinator that replaces one whose run
held the claim passes over runs that only wait for theirs. A run that was stopped for longer than its lease, as on a machine
that sleeps, finds its object gone: it looks for others before it writes another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain.structs import UNDECODABLE, prepare
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.store import CorruptObject, NotFound, Store

log = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
LEASE_SECONDS = 30.0
_LOOK_SECONDS = 1.0  # between two looks at another run's object
_LEAVE_SECONDS = 5.0  # for the deletion at the end

FOLDER = "live/"


class LiveRun(msgspec.Struct, frozen=True):
    """`live/UID.json`: a run that uses this location. `renewals` grows while it is alive."""

    job: str
    uid: str
    coordinator: str  # the pod's name
    place: str  # host and run directory
    renewals: int = 0
    waits: bool | UnsetType = UNSET  # it looks at the others' objects, and may yet be refused


class Claim:
    """The claim of one run. `acquire` once, `release` at the end."""

    def __init__(
        self,
        store: Store,
        run: LiveRun,
        renew: float = RENEW_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`sleep` passes the time between two looks at another run's object."""
        self._store, self._run, self._renew, self._sleep = store, run, renew, sleep
        self._renewing: asyncio.Task[None] | None = None
        self._released, self._writing = asyncio.Event(), asyncio.Lock()

    async def acquire(self, call: StoreExecutor, on_wait: Callable[[str], None] = lambda words: None) -> bool:
        """Returns once no other run uses the location: whether it had to wait for that.

        Raises Refused (CheckpointInUse), and what the store raises. `on_wait` gets what the claim waits for; empty: nothing.
        """
        self._call = call
        before = await call(self._read, key_of(self._run.uid))
        held = before is not None and not before.waits  # by the coordinator that this one replaces
        await self._write(UNSET if held else True)
        self._renewing = asyncio.create_task(self._keep())
        others = [other for other in await call(self._others) if not (held and other.waits)]
        for other in others:
            on_wait(
                f"the claim of {other.job} ({other.place}) on checkpoint.uri to be renewed or to end in {LEASE_SECONDS:g} s"
            )
            await self._outlive(other)
        on_wait("")
        if not held:
            await self._write(UNSET)
        return bool(others)

    def check(self) -> None:
        """Raises the error that has ended the renewals: Stale where another run has taken the location meanwhile."""
        if self._renewing is not None and self._renewing.done():
            self._renewing.result()

    async def release(self) -> None:
        """Stops renewing and deletes the object, unless it is that of a coordinator that has replaced this one. A store that is
        away keeps it: others wait for the lease then."""
        if self._renewing is None:
            return
        self._released.set()
        with suppress(CoxswainError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await asyncio.wait([self._renewing])  # never cancelled: no write under way may come behind the deletion
                await self._call(self._delete_own)

    def _delete_own(self) -> None:
        found = self._read(key_of(self._run.uid))
        if found is not None and found.coordinator == self._run.coordinator:
            self._store.delete(key_of(self._run.uid))

    async def _outlive(self, other: LiveRun) -> None:
        """Waits until the other run's lease is over. Raises Refused if it renews its object."""
        for _ in range(round(LEASE_SECONDS / _LOOK_SECONDS)):
            await self._sleep(_LOOK_SECONDS)
            now = await self._call(self._read, key_of(other.uid))
            if now is None:
                return
            if now.renewals != other.renewals:
                raise in_use(self._store.uri, now)
        log.warning("the run of %s (%s) no longer uses %s", other.job, other.place, self._store.uri)
        await self._call(self._store.delete, key_of(other.uid))

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew):
                    await self._released.wait()
                return
            with suppress(Refused, Retryable):  # the next one may succeed
                await self._call(self._check_own)
                await self._write(self._run.waits)

    def _check_own(self) -> None:
        """Raises Stale where the object is gone and another run is there: that one has waited for the whole lease."""
        if self._read(key_of(self._run.uid)) is None and (others := self._others()):
            raise Stale(
                f"checkpoint.uri {self._store.uri} was taken by the run of {others[0].job} (uid {others[0].uid}, "
                f"{others[0].coordinator} on {others[0].place}) while this coordinator was stopped for more than "
                f"{LEASE_SECONDS:g} s; end one of the two runs"
            )

    async def _write(self, waits: bool | UnsetType) -> None:
        async with self._writing:  # a store that is away lets an earlier write end behind a later one
            self._run = msgspec.structs.replace(self._run, renewals=self._run.renewals + 1, waits=waits)
            await self._call(self._store.put, key_of(self._run.uid), msgspec.json.encode(self._run))

    def _others(self) -> list[LiveRun]:
        found = (self._read(o.path) for o in self._store.list(FOLDER) if o.path != key_of(self._run.uid))
        return [run for run in found if run is not None]

    def _read(self, key: str) -> LiveRun | None:
        """None where the object is gone, is damaged, or is none of ours."""
        with suppress(NotFound, CorruptObject, *UNDECODABLE):
            return msgspec.json.decode(self._store.get(key), type=LiveRun)
        return None


def key_of(uid: str) -> str:
    return f"{FOLDER}{uid}.json"


def in_use(uri: str, run: LiveRun) -> Refused:
    return Refused(
        "CheckpointInUse",
        f"checkpoint.uri {uri} is in use by the run of {run.job} (uid {run.uid}, {run.coordinator} on {run.place}); wait for "
        "it to end, or choose another",
    )


prepare(__name__)
