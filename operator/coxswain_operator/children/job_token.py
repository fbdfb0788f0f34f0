"""The tokens of jobs: made of the operator's key and the job's uid, so that no Secret needs to be read."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

from coxswain_operator.children.common import child
from coxswain_operator.views import Manifest

KEY_BYTES = 32


class TokenKeys:
    """The operator's keys, the newest first: it makes new tokens, and the others find those that jobs still have."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """Without keys, a random one: for an operator whose jobs end with it."""
        self._keys = tuple(keys) or (secrets.token_bytes(KEY_BYTES),)

    def tokens(self, job: Manifest) -> tuple[str, ...]:
        """The job's token by each key."""
        return tuple(_token(key, job["metadata"]["uid"]) for key in self._keys)


def _token(key: bytes, uid: str) -> str:
    digest = hmac.digest(key, f"coxswain.dev/job-token {uid}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def secret_name(job: Manifest, token: str) -> str:
    """Differs from token to token: a Secret of that name has that token."""
    return f"{former_name(job)}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def former_name(job: Manifest) -> str:
    """Of the Secret with a random token, which releases before 0.2 made."""
    return f"{job['metadata']['name']}-token"


def mounted_name(job: Manifest) -> str:
    """Of the Secret that the job's pods mount, as its status says."""
    return str((job.get("status") or {}).get("tokenSecret") or former_name(job))


def mount_hint(job: Manifest, tokens: Iterable[str]) -> str:
    """That Secret, and what brings another one if it is missing. `tokens`: that this operator can make."""
    name = mounted_name(job)
    known = name in {secret_name(job, token) for token in tokens}
    lost = "made by a key that this operator lacks: suspend and resume the job for another"
    return f"Secret {name} ({'deleting the pod makes it again' if known else lost})"


def secret(job: Manifest, token: str) -> Manifest:
    data = {"token": base64.b64encode(token.encode()).decode()}
    manifest = child(job, "v1", "Secret", secret_name(job, token), {"type": "Opaque", "data": data})
    manifest["metadata"]["annotations"] = {}  # no hash of the token in readable metadata
    return manifest
