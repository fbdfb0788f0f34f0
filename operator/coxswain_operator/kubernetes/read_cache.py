"""Objects by name, of kinds that the operator has no right to list."""

from __future__ import annotations

import time
from collections.abc import Callable

from coxswain_operator.backoff import doubled
from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.remembered import Remembered
from coxswain_operator.kubernetes.resources import Resource
from coxswain_operator.views import Manifest

FIRST_REFUSAL_SECONDS = 1.0
LONGEST_REFUSAL_SECONDS = 60.0


class _Refusals:
    """Names that the operator may not read. Each refusal in a row counts for twice as long as the one before.

    A right that comes a moment later, as with a RoleBinding of the same `kubectl apply`, is soon seen, and jobs without a right
    do not ask with each pass.
    """

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._longest, self._clock = min(longest, LONGEST_REFUSAL_SECONDS), clock
        self._known: dict[Name, tuple[int, float]] = {}  # refusals in a row, and until when the last one counts

    def __contains__(self, name: Name) -> bool:
        return name in self._known and self._clock() < self._known[name][1]

    def add(self, name: Name) -> None:
        now = self._clock()
        self._known = {n: known for n, known in self._known.items() if now < known[1] + self._longest}
        failures = self._known[name][0] + 1 if name in self._known else 1
        self._known[name] = failures, now + doubled(failures, FIRST_REFUSAL_SECONDS, self._longest)

    def forget(self, name: Name) -> None:
        self._known.pop(name, None)


class ReadCache:
    """Reads and remembers for `seconds`; for less that the operator has no right to read."""

    def __init__(
        self, connection: Connection, resource: Resource, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._resource = connection, resource
        self._known = Remembered[Name, bytes](seconds, clock)
        self._refused = _Refusals(seconds, clock)

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """None: there is no such object, or the operator may not read it."""
        key = (namespace, name)
        if key in self._known:
            return manifest_of(self._known[key])
        if key in self._refused:
            return None
        return await self._read(key)

    async def _read(self, key: Name) -> Manifest | None:
        try:
            self._known[key] = await self._connection.send("GET", self._resource.path(*key))
        except Denied:
            self._refused.add(key)
            return None
        except NotFound:
            self._refused.forget(key)
            return None
        self._refused.forget(key)
        return manifest_of(self._known[key])
