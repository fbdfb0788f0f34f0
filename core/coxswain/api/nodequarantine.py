"""NodeQuarantine: a node that gets no new pods of any job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coxswain.api.common import DATE_TIME, SUBDOMAIN, Model, Text
from coxswain.api.effects import Effect


class NodeQuarantineSpec(Model):
    """A node that gets no new pods of any job, because it makes them slow or fails. Pods that run there go on. Deleting the
    object admits the node again at once."""

    node: Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN), Effect.NEVER]
    """Name of the node. It need not exist."""
    node_uid: Annotated[str | None, Field(max_length=128), Effect.AT_ONCE] = None
    """metadata.uid of the node: another node that gets the name later is admitted. Empty: whatever node has the name is kept
    out. Without the right to see nodes (rbac.nodes) the operator goes by the name alone."""
    reason: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9]*$"), Effect.AT_ONCE]
    """One CamelCase word, such as Slow."""
    evidence: Annotated[Text, Effect.AT_ONCE] = ""
    """What was seen, for people."""
    until: Annotated[str | None, Field(max_length=32, pattern=DATE_TIME), Effect.AT_ONCE] = None
    """When it ends, RFC 3339. Empty: when the object is deleted."""
