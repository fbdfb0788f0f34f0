"""The operator's keys: a Secret in its own namespace, which the first operator creates."""

from __future__ import annotations

import base64
import secrets

from coxswain.errors import Refused, Retryable
from coxswain_operator.children.job_token import KEY_BYTES
from coxswain_operator.cluster import AlreadyExists, Conflict
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.resources import FIELD_MANAGER, SECRETS
from coxswain_operator.kubernetes.until_given import until_given
from coxswain_operator.views import Manifest

KEY_SECRET = "coxswain-operator-key"


async def load_keys(connection: Connection, namespace: str) -> tuple[bytes, ...]:
    """All keys, that of the last name first. Waits until the server answers and permits it; raises Refused."""
    return _keys(await until_given(lambda: _read_or_create(connection, namespace)))


async def _read_or_create(connection: Connection, namespace: str) -> Manifest:
    if (found := await _read(connection, namespace)) is not None:
        return found
    key = base64.b64encode(secrets.token_hex(KEY_BYTES).encode()).decode()
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEY_SECRET},
        "type": "Opaque",
        "data": {"key-1": key},
    }
    try:
        return await connection.call("POST", SECRETS.path(namespace), body, fieldManager=FIELD_MANAGER)
    except (AlreadyExists, Conflict) as error:  # another operator was faster, or a quota changed
        if (found := await _read(connection, namespace)) is not None:
            return found
        raise Retryable(f"Secret {namespace}/{KEY_SECRET}: {error}") from error
    except NotFound as error:
        message = f"--operator-namespace {namespace}: the cluster has no such namespace; create it, or name the operator's own"
        raise Refused("NamespaceMissing", message) from error


async def _read(connection: Connection, namespace: str) -> Manifest | None:
    try:
        return await connection.call("GET", SECRETS.path(namespace, KEY_SECRET))
    except NotFound:
        return None


def _keys(secret: Manifest) -> tuple[bytes, ...]:
    data = secret.get("data") or {}
    found = tuple(base64.b64decode(data[name]) for name in sorted(data, reverse=True))
    if not found or min(map(len, found)) < KEY_BYTES:
        message = (
            f"Secret {KEY_SECRET} needs keys of at least {KEY_BYTES} bytes; add one, or delete the Secret for a new key"
        )
        raise Refused("KeyUnusable", message)
    return found
