"""URIs of folders and objects: built, read and split here alone.

A file URI may be percent-encoded, as RFC 8089 wants it, or hold spaces and letters of any language
as they are. `%` itself is written as `%25`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from coxswain.errors import Refused

_FILE = "file:"
BUCKET = r"[A-Za-z0-9._:-]+"  # as a pattern
# As a pattern: uris with a path in a bucket that obstore reads no key of. A part is `.` or `..`, or one within is empty, or there
# is a control character.
NO_PATH = r"^s3://[^/]+/(.*/)?[.]{1,2}(/|$)|^s3://[^/]+/+[^/].*//[^/]|^s3://[^/]*/.*[\x00-\x1f\x7f]"


def file_uri(path: Path | str) -> str:
    """The URI of an absolute path, readable for people."""
    return f"{_FILE}//{str(path).replace('%', '%25')}"


def is_file(uri: str) -> bool:
    return uri.startswith(_FILE)


def file_path(uri: str) -> Path:
    """The path that a file URI names; relative where the URI is (`file:corpus`)."""
    return Path(_decoded(uri.removeprefix(_FILE).removeprefix("//")))


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """The parts of s3://bucket/prefix. A key is taken as it is, whatever letters it has. Raises Refused (InvalidPath)."""
    bucket, _, prefix = _checked(uri).removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")


def folder_and_key(uri: str) -> tuple[str, str]:
    """The URI of an object's folder, and its key there. Raises Refused (InvalidPath)."""
    folder, _, name = _checked(uri).rpartition("/")
    return folder, _decoded(name) if is_file(uri) else name


def _checked(uri: str) -> str:
    if re.search(NO_PATH, uri):
        raise Refused(
            "InvalidPath",
            f"uri {uri!r}: no part of a path in a bucket may be empty, '.' or '..', or have a control character; correct it",
        )
    return uri


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")
