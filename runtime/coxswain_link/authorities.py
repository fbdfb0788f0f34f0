"""Whose signature an S3 server's certificate needs: a Secret's `ca.crt`, AWS_CA_BUNDLE's file, or else the system's."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from obstore.exceptions import BaseError

from coxswain_link.store_faults import Denied

IN_SECRET = "ca.crt"
VARIABLE = "AWS_CA_BUNDLE"  # as boto3 and the aws command know it

# obstore believes what both hold; without either, what the system does.
_FILE, _FOLDER = "SSL_CERT_FILE", "SSL_CERT_DIR"
_NONE = "No CA certificates were loaded"
_environment = threading.Lock()


def of_environment() -> Path | None:
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named) if named else None


def fault(file: Path) -> str:
    """Why no certificate can be read there; empty: one can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError as error:
        return (error.reason or str(error)).replace("_", " ").lower()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextmanager
def only(file: Path | None) -> Iterator[None]:
    """A client of obstore that is made within believes the authorities of `file` alone.

    None, or a file without one, which the first call names (`fault`): it believes what it does by itself. obstore reads the
    variables where it makes a client, and takes authorities in no other way. Raises Denied where there is none at all:
    obstore then makes no client, not even for http://.
    """
    with _environment:
        before = {name: os.environ.get(name) for name in (_FILE, _FOLDER)}
        _set({_FILE: str(file), _FOLDER: None} if file is not None and not fault(file) else before)
        try:
            yield
        except BaseError as error:
            if _NONE not in str(error):
                raise
            raise _without_any(before) from error
        finally:
            _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value


def _without_any(variables: dict[str, str | None]) -> Denied:
    named = " and ".join(f"{name} ({value})" for name, value in variables.items() if value)
    return Denied(
        f"no certificate of an authority is in {named or 'the files of this system'}; install ca-certificates, or name a file of "
        f"PEM in {VARIABLE}",
        "CertificateInvalid",
    )
