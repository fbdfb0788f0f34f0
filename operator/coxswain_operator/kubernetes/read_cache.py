"""Objects by name, of kinds that the operator has no right to list."""

from __future__ import annotations

import time
from collections.abc import Callable

from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.resources import Resource
from coxswain_operator.views import Manifest


class ReadCache:
    """Reads and remembers for `seconds`, also that the operator has no right to read."""

    def __init__(
        self, connection: Connection, resource: Resource, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._resource, self._seconds, self._clock = connection, resource, seconds, clock
        self._known: dict[Name, tuple[float, bytes]] = {}  # when it was read, and what it was; empty: not permitted

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """None: there is no such object, or the operator may not read it."""
        now = self._clock()
        self._known = {n: known for n, known in self._known.items() if now - known[0] < self._seconds}
        if (namespace, name) not in self._known:
            content = await self._read(namespace, name)
            if content is None:
                return None
            self._known[namespace, name] = now, content
        content = self._known[namespace, name][1]
        return manifest_of(content) if content else None

    async def _read(self, namespace: str, name: str) -> bytes | None:
        try:
            return await self._connection.send("GET", self._resource.path(namespace, name))
        except NotFound:
            return None
        except Denied:
            return b""
