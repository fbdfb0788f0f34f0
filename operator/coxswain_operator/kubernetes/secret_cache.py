"""Secrets by their names: the operator has no right to list them, and wants none."""

from __future__ import annotations

import time

from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.resources import SECRETS
from coxswain_operator.views import Manifest

KEPT_SECONDS = 300.0  # after which one is asked for again: somebody may have deleted it


class SecretCache:
    """Reads and remembers. A job has one Secret, which never changes while the job lives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[Name, tuple[float, bytes]] = {}  # when it was read, and what it was

    async def get(self, namespace: str, name: str) -> Manifest | None:
        known = self._known.get((namespace, name))
        if known is not None and time.monotonic() - known[0] < KEPT_SECONDS:
            return manifest_of(known[1])
        try:
            content = await self._connection.send("GET", SECRETS.path(namespace, name))
        except NotFound:
            self.forget((namespace, name))
            return None
        self.note((namespace, name), content)
        return manifest_of(content)

    def note(self, name: Name, content: bytes) -> None:
        now = time.monotonic()
        self._known = {n: known for n, known in self._known.items() if now - known[0] < KEPT_SECONDS}
        self._known[name] = now, content

    def forget(self, name: Name) -> None:
        self._known.pop(name, None)
