"""The object store: files and S3 behind one small interface, on obstore, with boto3's credential chain for S3."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

from coxswain.config import EndpointConfig
from coxswain.errors import Refused, Retryable

if TYPE_CHECKING:
    from obstore.store import S3Config

_TIMEOUT = "30s"
_RETRIES = timedelta(seconds=20)  # within one call; who has more patience calls again


class NotFound(Retryable):
    """There is no such object (or bucket, or folder)."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectInfo:
    path: str  # relative to the store's uri
    size: int  # bytes
    etag: str  # content identity; of a file: size, mtime and inode


class Store:
    """Objects under one uri; keys are relative paths. Errors: NotFound, Refused (credentials), Retryable."""

    def __init__(self, backend: Any, uri: str, secret: str = "") -> None:
        """`secret`: name of the one that holds the credentials, for people."""
        self._backend, self.uri, self.secret = backend, uri, secret

    def get(self, key: str) -> bytes:
        with _errors(self, key):
            return bytes(obstore.get(self._backend, key).bytes())

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop)."""
        if start == stop:
            return b""
        with _errors(self, key):
            return bytes(obstore.get_range(self._backend, key, start=start, end=stop))

    def put(self, key: str, data: bytes) -> None:
        with _errors(self, key):
            obstore.put(self._backend, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        """Claims a key: True if this call made the object, False if one is there already. Atomic on files and on S3.

        A create whose answer was lost may have succeeded, so equal content counts as ours; and a store may word a refused
        create as a generic error, so the object that is there decides.
        """
        try:
            obstore.put(self._backend, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return self.get(key) == data
        except (BaseError, FileNotFoundError):  # the latter: there is no such bucket
            if self.exists(key):
                return self.get(key) == data
            with _errors(self, key):
                raise
        return True

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def head(self, key: str) -> ObjectInfo:
        with _errors(self, key):
            return _info(obstore.head(self._backend, key))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """All objects below a prefix, sorted by path."""
        with _errors(self, prefix):
            found = [_info(meta) for chunk in obstore.list(self._backend, prefix or None) for meta in chunk]
        return sorted(found)

    def delete(self, key: str) -> None:
        """An absent object is no error."""
        with _errors(self, key):
            try:
                obstore.delete(self._backend, key)
            except (NotFoundError, FileNotFoundError):
                return


class _errors:
    """Turns obstore's errors into ours, naming the object."""

    def __init__(self, store: Store, key: str) -> None:
        self._where, self._secret = f"{store.uri.rstrip('/')}/{key}", store.secret

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (NotFoundError, FileNotFoundError)):
            raise NotFound(f"{self._where} does not exist") from error
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            of = f" of Secret {self._secret!r} (endpoint.secretRef)" if self._secret else ""
            way_out = "check them, and the bucket's policy"
            raise Refused("AccessDenied", f"{self._where}: credentials{of} refused; {way_out}") from error
        if isinstance(error, BaseError) and "NoSuchBucket" in str(error):  # the store words it as a generic error
            raise NotFound(f"{self._where} does not exist: there is no such bucket") from error
        if isinstance(error, BaseError):
            raise Retryable(f"{self._where}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path=str(meta["path"]), size=int(meta["size"]), etag=str(meta["e_tag"] or ""))


def open_store(
    uri: str, endpoint: EndpointConfig | None = None, secrets_dir: Path | None = None, create: bool = False
) -> Store:
    """Opens file:///folder or s3://bucket/prefix. `create` makes a missing local folder (for what we write)."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Store(_local(uri, Path(parts.path), create), uri)
    if parts.scheme == "s3":
        endpoint = endpoint or EndpointConfig()
        return Store(_s3(parts.netloc, parts.path.strip("/"), endpoint, secrets_dir), uri, endpoint.secret)
    raise Refused("UnknownScheme", f"uri {uri!r}: allowed are s3://bucket/prefix and file:///folder")


def _local(uri: str, folder: Path, create: bool) -> LocalStore:
    if not create and not folder.is_dir():
        raise NotFound(f"{uri} does not exist or is not a folder")
    return LocalStore(prefix=folder, automatic_cleanup=False, mkdir=create)


def _s3(bucket: str, prefix: str, endpoint: EndpointConfig, secrets_dir: Path | None) -> S3Store:
    config: S3Config = {"region": endpoint.region or os.environ.get("AWS_REGION", "us-east-1")}
    if endpoint.url:
        config["endpoint"] = endpoint.url
        config["virtual_hosted_style_request"] = False
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        retry_config={"max_retries": 5, "retry_timeout": _RETRIES},
        client_options={"allow_http": endpoint.url.startswith("http://"), "timeout": _TIMEOUT, "connect_timeout": "5s"},
        **_credentials(endpoint, secrets_dir),
    )


def _credentials(endpoint: EndpointConfig, secrets_dir: Path | None) -> dict[str, Any]:
    """From the endpoint's mounted Secret if it names one, else boto3's chain (environment, profile, web identity)."""
    if endpoint.secret:
        return _secret_credentials(endpoint.secret, secrets_dir)
    from boto3.session import Session
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider(Session())}


def _secret_credentials(secret: str, secrets_dir: Path | None) -> dict[str, Any]:
    folder = (secrets_dir or Path("/etc/coxswain/secrets")) / secret
    try:
        key, value = ((folder / name).read_text().strip() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    except OSError as error:
        raise Refused(
            "SecretIncomplete",
            f"endpoint.secretRef {secret!r}: needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({error.filename} is missing)",
        ) from error
    token = folder / "AWS_SESSION_TOKEN"
    optional = {"session_token": token.read_text().strip()} if token.exists() else {}
    return {"access_key_id": key, "secret_access_key": value, **optional}
