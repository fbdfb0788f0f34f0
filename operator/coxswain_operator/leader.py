"""Leader election on a Lease: at most one operator acts.

A holder that cannot renew stops acting before another candidate may take the Lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from coxswain.errors import Refused, Retryable
from coxswain_operator.cluster import AlreadyExists, Conflict
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.resources import LEASES
from coxswain_operator.repeated_line import RepeatedLine
from coxswain_operator.views import Manifest

log = logging.getLogger(__name__)

LONGEST_SECONDS = 3600  # as the chart's schema


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A holder gives up after `renew`; another takes over after `lease`; the rest is margin."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not LONGEST_SECONDS >= self.lease > self.renew > self.retry > 0:
            found = f"lease {self.lease}, renew {self.renew}, retry {self.retry}"
            rule = f"each must be longer than the next, and all above 0 and at most {LONGEST_SECONDS}"
            raise Refused("InvalidLeaseTiming", f"{found}: {rule}; the usual values are 15, 10 and 2")


def _asleep() -> float:
    """Seconds that this machine has been suspended since it started: the event loop's clock stands meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class Leader:
    """One candidate. All times are of its own event loop; clocks of machines are never compared.

    A Lease is over once this candidate has seen it unchanged for longer than the lease duration.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        asleep: Callable[[], float] = _asleep,
    ) -> None:
        self._connection, self._namespace, self._name = connection, namespace, name
        self._identity, self._timing = identity, timing or Timing()
        self._seen: tuple[str, float] = ("", 0.0)  # the Lease's version, and when it was first seen
        self._written: Manifest | None = None  # the Lease as the last own write left it
        self._lost = False
        self._line = RepeatedLine(log)
        self._asleep, self._asleep_before = asleep, asleep()  # the latter as of `renewed`
        self.renewed = 0.0  # when the last successful renewal was sent; 0: not the leader

    async def acquire(self) -> None:
        """Returns once this candidate holds the Lease."""
        while not await self._attempt():  # noqa: ASYNC110 (a remote Lease sets no event)
            await asyncio.sleep(self._timing.retry)
        log.info("%s is the leader", self._identity)

    async def hold(self) -> None:
        """Renews; returns when the Lease is lost, at most `renew` seconds after the last good renewal."""
        in_order = False
        try:
            await self._renew()
        except asyncio.CancelledError:
            in_order = True  # the last events may be written
            raise
        finally:
            self._lost, self.renewed = not in_order, 0.0

    async def _renew(self) -> None:
        while True:
            try:
                ours = await self._attempt_in_time()
            except TimeoutError:
                log.error("the Lease could not be renewed for %g s", self._timing.renew)
                return
            if not ours:
                log.error("the Lease has another holder")
                return
            await asyncio.sleep(self._timing.retry)

    async def _attempt_in_time(self) -> bool:
        """Raises TimeoutError `renew` seconds after the last good renewal; unsent if they are over already, as after a stop."""
        left = self._left
        if left <= 0:
            raise TimeoutError
        async with asyncio.timeout(left):
            return await self._attempt()

    def may_write(self) -> bool:
        """False once the Lease is lost or its last renewal is too old, also before `hold` has noticed: a process may be stopped
        for a while, and its machine suspended."""
        return not self._lost and (not self.renewed or self._left > 0)

    @property
    def _left(self) -> float:
        """Seconds until the last renewal is too old. Two clocks that are read one after the other differ by a little."""
        asleep = self._asleep() - self._asleep_before
        return self.renewed + self._timing.renew - _clock() - (asleep if asleep >= 1 else 0)

    async def release(self) -> None:
        """Lets another candidate take over at once. The caller has stopped acting."""
        while (lease := await self._get()) is not None and _holder(lease) == self._identity:
            if await self._put({**lease, "spec": {**lease["spec"], "holderIdentity": ""}}):
                return  # else a renewal that was cancelled has reached the server meanwhile

    async def _attempt(self) -> bool:
        """Whether this candidate holds the Lease now. Repeats after an error; `hold` limits the time.

        A renewal counts from when it was sent: the server may have stored it at once.
        """
        while True:
            started, asleep = _clock(), self._asleep()
            try:
                if ours := await self._take():
                    self.renewed, self._asleep_before = started, asleep
                self._line.forget()
                return ours
            except (Retryable, Refused, NotFound) as error:  # the last: the namespace is gone
                self._line.warn(f"Lease {self._namespace}/{self._name}: {error}")
                await asyncio.sleep(self._timing.retry)

    async def _take(self) -> bool:
        """A holder overwrites its own last write unread: a slow server then gets one request, not two."""
        if self._written is not None and await self._put(self._renewed(self._written, transition=False)):
            return True
        lease = await self._get()
        if lease is None:
            return await self._create()
        if _holder(lease) == self._identity:
            if not await self._put(self._renewed(lease, transition=False)):
                raise Retryable("the Lease changed, perhaps by an own write whose answer was lost; reading it again")
            return True
        if _holder(lease) and not self._is_over(lease):
            return False
        return await self._put(self._renewed(lease, transition=True))

    def _is_over(self, lease: Manifest) -> bool:
        now, version = _clock(), str(lease["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = version, now
        return now - self._seen[1] > float(lease["spec"].get("leaseDurationSeconds", self._timing.lease))

    def _renewed(self, lease: Manifest, transition: bool) -> Manifest:
        spec = {**lease.get("spec", {}), "holderIdentity": self._identity, "renewTime": _now()}
        # Whole seconds, never fewer than the lease: a candidate that waits for less could begin before this holder has stopped.
        spec["leaseDurationSeconds"] = math.ceil(self._timing.lease)
        if transition:
            spec |= {"acquireTime": _now(), "leaseTransitions": int(spec.get("leaseTransitions", 0)) + 1}
        return {**lease, "spec": spec}

    async def _create(self) -> bool:
        head = {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": head}
        try:
            await self._call("POST", LEASES.path(self._namespace), self._renewed(lease, transition=True))
        except (AlreadyExists, Conflict):
            return False
        return True

    async def _get(self) -> Manifest | None:
        try:
            return await self._call("GET", self._path)
        except NotFound:
            return None

    async def _put(self, lease: Manifest) -> bool:
        """False: the Lease has changed or is gone since it was read."""
        try:
            self._written = await self._call("PUT", self._path, lease)
        except (Conflict, NotFound):
            return False
        return True

    async def _call(self, method: str, path: str, body: Manifest | None = None) -> Manifest:
        return await self._connection.call(method, path, body, deadline=self._timing.renew / 2)

    @property
    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _holder(lease: Manifest) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
