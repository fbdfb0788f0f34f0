"""Objects by name, of kinds that the operator has no right to list."""

from __future__ import annotations

import time
from collections.abc import Callable

from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.remembered import Remembered
from coxswain_operator.kubernetes.resources import Resource
from coxswain_operator.views import Manifest


class ReadCache:
    """Reads and remembers for `seconds`, also that the operator has no right to read."""

    def __init__(
        self, connection: Connection, resource: Resource, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._resource = connection, resource
        self._known = Remembered[Name, bytes](seconds, clock)  # empty: not permitted

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """None: there is no such object, or the operator may not read it."""
        if (namespace, name) in self._known:
            content = self._known[namespace, name]
        else:
            found = await self._read(namespace, name)
            if found is None:
                return None
            content = self._known[namespace, name] = found
        return manifest_of(content) if content else None

    async def _read(self, namespace: str, name: str) -> bytes | None:
        try:
            return await self._connection.send("GET", self._resource.path(namespace, name))
        except NotFound:
            return None
        except Denied:
            return b""
