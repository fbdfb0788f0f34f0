"""Opens a bucket of any S3 server, with credentials from a mounted Secret or boto3's chain."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import S3Store

from coxswain.config import EndpointConfig
from coxswain.errors import CoxswainError, Refused
from coxswain_link.store_faults import Denied, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

_SILENCE = "30s"  # of a server in the middle of an answer
_WHOLE = "10 min"  # one request, however large
_RETRIES = timedelta(seconds=20)  # obstore's own, of one request: for blips; the longer pauses are the store's
_FRESH = timedelta(minutes=5, seconds=10)  # obstore asks again five minutes before: it sees new keys within ten seconds

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as boto3 and the aws command know them
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class Access:
    """Credentials that obstore asks for repeatedly.

    `origin`: where they come from, for messages.
    """

    def __init__(self, origin: str, ask: Callable[[], tuple[str, str, str | None]]) -> None:
        self.origin, self._ask = origin, ask
        self.fault: CoxswainError | None = None  # of the last request; obstore hides what this raises

    def __call__(self) -> S3Credential:
        self.fault = None
        try:
            key, secret, token = self._ask()
        except CoxswainError as error:
            self.fault = error
            raise
        return {
            "access_key_id": key, "secret_access_key": secret, "token": token or None,
            "expires_at": datetime.now(UTC) + _FRESH,
        }  # fmt: skip


def open_s3(bucket: str, prefix: str, endpoint: EndpointConfig, access: Access) -> S3Store:
    config: S3Config = {"region": endpoint.region or os.environ.get("AWS_REGION", "us-east-1")}
    url = endpoint.url or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    if url:
        config["endpoint"] = url
        config["virtual_hosted_style_request"] = False
    client: ClientConfig = {"timeout": _WHOLE, "read_timeout": _SILENCE, "connect_timeout": "5s"}
    client["allow_http"] = url.startswith("http://")
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        retry_config={"max_retries": 2, "retry_timeout": _RETRIES},
        client_options=client,
        credential_provider=access,
    )


def find_access(endpoint: EndpointConfig, secrets_dir: Path | None) -> Access:
    """From the endpoint's mounted Secret if it names one, else from boto3's chain.

    Raises Refused: SecretIncomplete, AccessDenied.
    """
    if not endpoint.secret:
        return _chain()
    folder = (secrets_dir or Path("/etc/coxswain/secrets")) / endpoint.secret
    _secret_keys(endpoint.secret, folder)  # fails at once
    origin = f"of Secret {endpoint.secret!r} (endpoint.secretRef)"
    return Access(origin, lambda: _secret_keys(endpoint.secret, folder))


def _secret_keys(secret: str, folder: Path) -> tuple[str, str, str | None]:
    """The keys as they are mounted now: the kubelet updates them."""
    try:
        key, value = ((folder / name).read_text().strip() for name in _KEYS)
    except (OSError, UnicodeDecodeError) as error:
        why = f"{error.filename} is missing" if isinstance(error, OSError) else f"one is no text: {error}"
        raise Refused(
            "SecretIncomplete",
            f"endpoint.secretRef {secret!r}: needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({why})",
        ) from error
    token = folder / "AWS_SESSION_TOKEN"
    return key, value, token.read_text().strip() if token.exists() else None


def _chain() -> Access:
    from boto3.session import Session
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        credentials = Session().get_credentials()
    except BotoCoreError as error:
        raise Denied(f"boto3's chain of credentials: {error}") from error
    if credentials is None:
        raise Denied(
            "boto3's chain found no credentials (environment, profile, web identity, instance); provide some, or name a "
            "Secret in endpoint.secretRef"
        )
    origin = f"of boto3's chain ({credentials.method})"

    def ask() -> tuple[str, str, str | None]:
        try:
            frozen = credentials.get_frozen_credentials()
        except ClientError as error:
            raise Denied(f"credentials {origin}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"credentials {origin}: {error}") from error
        return frozen.access_key, frozen.secret_key, frozen.token

    return Access(origin, ask)
