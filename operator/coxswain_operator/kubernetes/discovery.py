"""What an API server serves, of what may be there or not."""

from __future__ import annotations

import logging
from functools import partial

from coxswain.errors import Refused
from coxswain_operator.children.gangs import BACKENDS, CHOICES
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.until_given import until_given

log = logging.getLogger(__name__)


async def served(connection: Connection, api_version: str) -> frozenset[str]:
    """Plural names of the kinds of a group's version; empty if it is not served. Raises Retryable."""
    try:
        found = await connection.call("GET", f"/apis/{api_version}")
    except NotFound:
        return frozenset()
    return frozenset(resource["name"] for resource in found["resources"])


async def find_gang_backend(connection: Connection, choice: str) -> str:
    """The first backend of an installation's choice whose API is served; empty for None, and for Auto without any.

    Waits until the server answers. Raises Refused for a choice that is unknown or not served.
    """
    if choice not in CHOICES:
        raise Refused("InvalidOption", f"--gang-scheduling: {choice} is none of {', '.join(CHOICES)}")
    for name in CHOICES[choice]:
        backend = BACKENDS[name]
        if backend.plural in await until_given(partial(served, connection, backend.api_version)):
            log.info("gangs: %s %s", backend.api_version, backend.kind)
            return name
    if choice in ("None", "Auto"):
        return ""
    wanted = " or ".join(f"{BACKENDS[name].kind} of {BACKENDS[name].api_version}" for name in CHOICES[choice])
    way_out = "install the scheduler with its CRDs, enable the API, or choose Auto or None"
    raise Refused("GangApiMissing", f"--gang-scheduling {choice}: the API server serves no {wanted}; {way_out}")
