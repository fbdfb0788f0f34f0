"""An API server's audit log: requests, their users, and the answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.integration.apiserver import ApiServer

_HASH = re.compile(
    r"-([0-9a-f]{8}|[0-9a-f]{10})$"
)  # of a token or of what an attempt is made of: both hold the job's uid


@dataclass(frozen=True, slots=True)
class Request:
    user: str
    agent: str
    verb: str  # as RBAC spells it: get, list, watch, create, patch ...
    group: str
    resource: str  # with its subresource: pods, trainingjobs/status
    namespace: str
    name: str
    code: int

    @property
    def right(self) -> tuple[str, str, str]:
        """What a role must grant for it."""
        return self.group, self.resource, self.verb


def requests(api: ApiServer, containing: str) -> Iterator[Request]:
    """Of the requests whose line contains the string (a namespace, a user), all that were about
    objects.
    """
    needle = containing.encode()
    with api.audit.open("rb") as lines:
        for line in lines:
            if needle in line and line.endswith(b"\n"):
                record = msgspec.json.decode(line)
                if "objectRef" in record:
                    yield _request(record)


def created(api: ApiServer, namespace: str) -> Counter[str]:
    """How often each object was created in the namespace; nothing that was refused counts. Names are without hashes.

    Left out: events, and the disruption budget, which exists while the gang is whole. A job that
    continues at once may never show its operator a whole gang.
    """
    return Counter(
        f"{r.resource}/{_HASH.sub('', r.name)}"
        for r in requests(api, namespace)
        if (r.verb, r.namespace, r.code) == ("create", namespace, 201)
        and r.resource not in ("events", "poddisruptionbudgets")
    )


def _request(record: dict[str, Any]) -> Request:
    what, status = record["objectRef"], record.get("responseStatus") or {}
    subresource = f"/{what['subresource']}" if "subresource" in what else ""
    return Request(
        user=record["user"].get("username", ""),
        agent=record.get("userAgent", ""),
        verb=record["verb"],
        group=what.get("apiGroup", ""),
        resource=what["resource"] + subresource,
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        code=int(status.get("code", 0)),
    )
