"""Opens a bucket of any S3 server, with credentials from a mounted Secret or boto3's chain."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import S3Store

from coxswain.config import EndpointConfig
from coxswain.errors import CoxswainError
from coxswain_link import authorities
from coxswain_link.s3_address import check_region, check_url, is_sendable, with_bucket
from coxswain_link.store_faults import Denied, StoreUnavailable

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import ClientConfig, S3Config, S3Credential

_SILENCE = "30s"  # of a server in the middle of an answer
_WHOLE = "10 min"  # one request, however large
_RETRIES = timedelta(seconds=20)  # obstore's own, of one request: for blips; the longer pauses are the store's
_FRESH = timedelta(minutes=5, seconds=10)  # obstore asks again five minutes before: it sees new keys within ten seconds

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as boto3 and the aws command know them
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_FAULTS = (
    "ProfileNotFound", "ConfigNotFound", "ConfigParseError", "InvalidConfigError", "PartialCredentialsError",
    "UnknownCredentialError", "MissingDependencyException", "LoginError", "SSOError",
)  # fmt: skip
"""botocore's errors of what the user wrote or has to do; its others may pass."""

Keys = tuple[str, str, str | None]
"""Key, secret and session token."""


class Access:
    """Credentials that obstore asks for repeatedly: the first time at the first call of a store.

    What is wrong with them is an error of that call, so that the store waits where they have worked.
    """

    origin = ""  # where they come from, for messages

    def __init__(self) -> None:
        self.fault: CoxswainError | None = None  # of the last request; obstore hides what this raises
        self.authorities = authorities.of_environment()

    def _keys(self) -> Keys:
        """Raises Denied, StoreUnavailable."""
        raise NotImplementedError

    def _check_authorities(self) -> None:
        """Raises Denied."""
        if self.authorities is not None and (why := authorities.fault(self.authorities)):
            raise Denied(
                f"{authorities.VARIABLE} {self.authorities} has no certificate that can be read ({why}); name a file of PEM",
                "CertificateInvalid",
            )

    def __call__(self) -> S3Credential:
        self.fault = None
        try:
            self._check_authorities()
            key, secret, token = self._keys()
        except CoxswainError as error:
            self.fault = error
            raise
        key, secret, token = key.strip(), secret.strip(), (token or "").strip()
        if not all(map(is_sendable, (key, secret, token))):
            self.fault = Denied(
                f"credentials {self.origin}: one has a line break, or a letter that is not ASCII; correct it"
            )
            raise self.fault
        return {
            "access_key_id": key, "secret_access_key": secret, "token": token or None,
            "expires_at": datetime.now(UTC) + _FRESH,
        }  # fmt: skip


def open_s3(bucket: str, prefix: str, endpoint: EndpointConfig, access: Access, silence: str = _SILENCE) -> S3Store:
    """`silence`: for how long a server may send nothing in the middle of an answer.

    Raises Refused for what no request can name, and where no authority is known (Denied).
    """
    url = _server(endpoint)
    virtual = endpoint.addressing_style == "Virtual"
    config: S3Config = {"region": _region(endpoint, url), "virtual_hosted_style_request": virtual}
    if url:
        config["endpoint"] = with_bucket(url, bucket) if virtual else url
    client: ClientConfig = {"timeout": _WHOLE, "read_timeout": silence, "connect_timeout": "5s"}
    client["allow_http"] = plain = url.startswith("http://")
    if plain:
        access.authorities = None  # there is no certificate
    with authorities.only(access.authorities):
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            retry_config={"max_retries": 2, "retry_timeout": _RETRIES},
            client_options=client,
            credential_provider=access,
        )


def _server(endpoint: EndpointConfig) -> str:
    """Empty: the cloud provider's own."""
    where, url = _first({"endpoint.url": endpoint.url} | _of_environment(_ENDPOINTS))
    if url:
        check_url(where, url)
    return url


def _region(endpoint: EndpointConfig, url: str) -> str:
    where, given = _first({"endpoint.region": endpoint.region} | _of_environment(_REGIONS))
    region = given or _of_profile(endpoint, url) or _REGION
    check_region(where or "region of the profile", region)
    return region


def _of_environment(names: tuple[str, ...]) -> dict[str, str]:
    """What each has, without the line break that a file's or a Secret's end leaves there."""
    return {name: os.environ.get(name, "").strip() for name in names}


def _first(values: dict[str, str]) -> tuple[str, str]:
    """The first that is set, with its name."""
    return next(((name, value) for name, value in values.items() if value), ("", ""))


def _of_profile(endpoint: EndpointConfig, url: str) -> str:
    """The region of the profile that has the keys. A server that is named has one of its own, or none."""
    if url or endpoint.secret:
        return ""
    from boto3.session import Session
    from botocore.exceptions import BotoCoreError

    with suppress(BotoCoreError):  # said at the first call, with the keys
        return Session().region_name or ""
    return ""


def find_access(endpoint: EndpointConfig, secrets_dir: Path | None) -> Access:
    """The endpoint's mounted Secret if it names one, else boto3's chain."""
    if not endpoint.secret:
        return _Chain()
    return _Mounted(endpoint.secret, (secrets_dir or Path("/etc/coxswain/secrets")) / endpoint.secret)


class _Mounted(Access):
    """The keys as they are mounted now: the kubelet updates them."""

    def __init__(self, secret: str, folder: Path) -> None:
        super().__init__()
        self._secret, self._folder = secret, folder
        self.origin = f"of Secret {secret!r} (endpoint.secretRef)"
        if (own := folder / authorities.IN_SECRET).exists():
            self.authorities = own

    def _check_authorities(self) -> None:
        own = self._folder / authorities.IN_SECRET
        if self.authorities != own:
            super()._check_authorities()
        elif why := authorities.fault(own):
            raise Denied(
                f"endpoint.secretRef {self._secret!r}: {own.name} has no certificate that can be read ({why}); give it the PEM "
                "of the server's authority, or leave it out",
                "SecretIncomplete",
            )

    def _keys(self) -> Keys:
        try:
            key, value = ((self._folder / name).read_text().strip() for name in _KEYS)
            token = self._folder / "AWS_SESSION_TOKEN"
            return key, value, token.read_text().strip() if token.exists() else None
        except (OSError, UnicodeDecodeError) as error:
            why = f"{error.filename} is missing" if isinstance(error, OSError) else f"one is no text: {error}"
            raise Denied(
                f"endpoint.secretRef {self._secret!r}: needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({why})",
                "SecretIncomplete",
            ) from error


class _Chain(Access):
    """boto3's chain, searched until a link has credentials: that of a node may come up after the pod."""

    origin = "of boto3's chain"

    def __init__(self) -> None:
        super().__init__()
        self._found: Credentials | None = None

    def _keys(self) -> Keys:
        from botocore import exceptions as botocore

        faults = tuple(getattr(botocore, name) for name in _FAULTS)
        try:
            frozen = self._link().get_frozen_credentials()
        except (*faults, botocore.ClientError) as error:
            raise Denied(f"credentials {self.origin}: {error}") from error
        except (botocore.BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"credentials {self.origin}: {error}") from error
        return frozen.access_key, frozen.secret_key, frozen.token

    def _link(self) -> Credentials:
        from boto3.session import Session

        if self._found is None:
            self._found = Session().get_credentials()
        if self._found is None:
            raise Denied(
                "boto3's chain found no credentials (environment, profile, web identity, instance); provide some, or name "
                "a Secret in endpoint.secretRef"
            )
        self.origin = f"of boto3's chain ({self._found.method})"
        return self._found
