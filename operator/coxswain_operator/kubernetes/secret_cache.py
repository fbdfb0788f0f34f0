"""Secrets by name: the operator has no right to list them."""

from __future__ import annotations

import time
from collections.abc import Callable

from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.resources import SECRETS
from coxswain_operator.views import Manifest

KEPT_SECONDS = 300.0  # then a Secret is read again: a user may have deleted it


class SecretCache:
    """Reads and remembers. A job has one Secret, which never changes while the job exists."""

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._known: dict[Name, tuple[float, bytes]] = {}  # when it was read, and what it was

    async def get(self, namespace: str, name: str) -> Manifest | None:
        known = self._known.get((namespace, name))
        if known is not None and self._clock() - known[0] < KEPT_SECONDS:
            return manifest_of(known[1])
        try:
            content = await self._connection.send("GET", SECRETS.path(namespace, name))
        except NotFound:
            return None
        self.note((namespace, name), content)
        return manifest_of(content)

    def note(self, name: Name, content: bytes) -> None:
        now = self._clock()
        self._known = {n: known for n, known in self._known.items() if now - known[0] < KEPT_SECONDS}
        self._known[name] = now, content

    def forget(self, name: Name) -> None:
        self._known.pop(name, None)
