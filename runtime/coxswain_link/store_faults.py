"""Errors of objects and stores, and the translation of obstore's errors into them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from coxswain.errors import CoxswainError, Refused, Retryable

_DENIED = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch")
"""S3's codes that obstore ignores: in listings, and in answers with status 400."""

_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
"""S3's codes for a bucket of another region. obstore shows no body of a redirect."""

_ABSENT = ("NoSuchKey", "NoSuchVersion")
"""S3's codes for an object that is not there. Few servers answer a deletion so: most have then done what was asked."""

_TOO_LONG = ("KeyTooLongError",)
"""S3's code for a key of more bytes than an object can have: 1,024 at most."""

_REDIRECT = "Received redirect without LOCATION"

_FOREIGN = (
    "the server answers 404 Not Found, and not as S3 does; look at endpoint.url, and at what is in front of the server"
)
"""An ingress or a load balancer that has no way to the server now says nothing about its objects."""

_CERTIFICATE = {
    "UnknownIssuer": "is signed by an authority that is not known here; add that authority's certificate as ca.crt to the Secret "
    "of endpoint.secretRef, or name a file of it in AWS_CA_BUNDLE",
    "CaUsedAsEndEntity": "is that of an authority itself (CA:TRUE), which signs and does not serve; give the server one that it "
    "has signed",
    "Expired": "has expired; renew it there, or correct this machine's clock",
    "NotValidYet": "is not valid yet; correct this machine's clock, or the server's",
    "NotValidForName": "does not name the host of endpoint.url; write a host there that it names, or issue one that names it",
}
"""rustls' words for a certificate that it refuses, and ours."""

CONDITIONS_MISSING = "ConditionalWritesMissing"
CONDITIONS_NEEDED = (
    "Two coordinators could write one record of the plan; name a server, or a release of it, with conditional writes in "
    "endpoint.url, as Amazon S3 has them since 2024"
)

NO_S3 = (
    "what answers is no S3 server, but answers to any name (a page to log in, an ingress?); look at endpoint.url, and at what is "
    "in front of the server"
)
"""A page with status 200: as a listing it is empty, as an object it is there."""

NO_ORDER = (
    "the server lists keys in another order than S3's, or a page again (it ignores start-after), so that objects would be left "
    "out or listed twice; name another server, or a newer release of this one, in endpoint.url"
)

FULL = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
"""The way out where a file finds no room."""


class NotFound(Retryable):
    """There is no such object (or folder)."""

    reason = "NotFound"


class StoreUnavailable(Retryable):
    """The store does not answer, or answers with an error."""

    reason = "Away"


class BucketNotFound(StoreUnavailable):
    """There is no such bucket, and no process of the job has ever seen it."""

    reason = "NoBucket"


class CorruptRead(StoreUnavailable):
    """The content that arrived differs from what was sent."""

    reason = "Garbled"


class CorruptObject(Refused):
    """The stored content differs from what was written."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "ObjectDamaged",
            f"{where} no longer has the content that was written to it (its SHA-256 differs); restore it, or "
            "delete it if it can be made again",
        )


class ObjectChanged(Refused):
    """The object is not the one that was listed: its etag differs."""

    def __init__(self, where: str) -> None:
        super().__init__("ObjectChanged", f"{where} was replaced since it was listed; bring the former content back")


class Unreadable(Refused):
    """A name that cannot be read, or a folder that may not be listed: it stays as it is."""

    def __init__(
        self, where: str, why: str, way_out: str = "rename it", narrow: str = "uri or include to what is wanted"
    ) -> None:
        super().__init__("ObjectUnreadable", f"{where} {why}; {way_out}, or narrow {narrow}")


class Denied(Refused):
    """Credentials were refused, or there are none."""

    def __init__(self, message: str, reason: str = "AccessDenied") -> None:
        super().__init__(reason, message)


class Lasting(Denied):
    """Refused whatever the keys are, and however long the caller waits."""


def translated(error: Exception, where: str, credentials: str) -> CoxswainError:
    """Translates an error of obstore. `credentials`: their origin; empty: the store needs none."""
    text = str(error)
    if credentials and "NoSuchBucket" in text:
        return BucketNotFound(f"{where}: there is no such bucket")
    if isinstance(error, PreconditionError):
        return ObjectChanged(where)
    if isinstance(error, InvalidPathError):
        narrow = "uri to a folder without it: it is listed whatever include says"
        return Unreadable(where, f"holds a key that cannot be read ({_named_path(text)})", narrow=narrow)
    if _is_absent(error) or (credentials and _has_code(text, _ABSENT)):
        if credentials and not _codes(text):
            return StoreUnavailable(f"{where}: {_FOREIGN}")
        return NotFound(f"{where} does not exist")
    if credentials and (lasting := _lasting(text)):
        return Lasting(f"{where}: {lasting}")
    if credentials and _has_code(text, _TOO_LONG):
        if "performing PUT" not in text:
            return NotFound(f"{where} does not exist")
        return Lasting(f"{where}: the server takes no key as long; shorten the uri", "KeyTooLong")
    if credentials and "performing PUT" in text and _has_code(text, ("NotImplemented",)):
        return Lasting(
            f"{where}: the server does not implement a create that replaces nothing (If-None-Match: *). {CONDITIONS_NEEDED}",
            CONDITIONS_MISSING,
        )
    if credentials and (certificate := _certificate(text)):
        return Denied(f"{where}: the server's certificate {certificate}", "CertificateInvalid")
    denied = isinstance(error, (PermissionDeniedError, UnauthenticatedError, PermissionError))
    if denied or (credentials and _has_code(text, _DENIED)):
        of = f" {credentials}" if credentials else ""
        if _has_code(text, ("RequestTimeTooSkewed",)):
            return Denied(f"{where}: refused, since this machine's clock and the server's differ by too much; set it")
        if not credentials:
            return Denied(f"{where}: permission denied; give the user of the job the right to read and write there")
        return Denied(f"{where}: credentials{of} refused; check them, and the bucket's policy")
    if isinstance(error, OSError):
        return StoreUnavailable(f"{where}: {of_system(error)}")
    return StoreUnavailable(f"{where}: {_summary(text)}")


def _is_absent(error: Exception) -> bool:
    """Whether no object has the name, or can have it: a file system has names of 255 bytes at most."""
    absent = isinstance(error, (NotFoundError, FileNotFoundError, NotADirectoryError, IsADirectoryError))
    return absent or (isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG)


def is_mute(error: Exception) -> bool:
    """Whether S3 has a code for it, which only the body of an answer to GET has."""
    return isinstance(error, (NotFoundError, FileNotFoundError)) or "status code: 400 " in str(error)


def of_system(error: OSError) -> str:
    """One text for one error, and the way out of a full disk: without the name of a file, which may be that of a staged one."""
    what = error.strerror or str(error)
    return f"{what}; {FULL[error.errno]}" if error.errno in FULL else what


def _lasting(text: str) -> str:
    """What S3 answers as long as nothing is changed, but not for the keys; empty: nothing of the kind."""
    if _REDIRECT in text or _has_code(text, _ELSEWHERE):
        theirs = re.search(r"<Region>([a-z0-9-]+)<", text)
        named = f", {theirs[1]}" if theirs else ""
        return f"the bucket is in another region than requests are signed for{named}; set endpoint.region"
    if _has_code(text, ("InvalidObjectState",)):
        return "it is archived; restore it to a storage class that can be read"
    return ""


def _has_code(text: str, codes: Iterable[str]) -> bool:
    return not _codes(text).isdisjoint(codes)


def _codes(text: str) -> set[str]:
    """S3's codes: of an answer, or of one object of those to be deleted, which obstore writes in its own words."""
    return {code for found in re.findall(r"<Code>(\w+)<|\(code: (\w+)\)", text) for code in found if code}


ERRORS = (BaseError, OSError)
"""What obstore and files raise."""


def _named_path(text: str) -> str:
    """What obstore says of a path, with control characters as escapes."""
    return text.split("\n\nDebug", 1)[0].rpartition("invalid path: ")[2][:300].encode("unicode_escape").decode()


def _summary(text: str) -> str:
    """One text for one error: without times, counts and addresses."""
    if answer := re.search(r"status code: (\d+ [^:\n]*)(?:.*?<Code>(\w+)<)?", text, re.DOTALL):
        return f"the server answers {answer[1]}" + (f" ({answer[2]})" if answer[2] else "")
    if refused := re.search(r"DeleteObjects request failed for key .* \(code: (\w+)\)", text, re.DOTALL):
        return f"the server does not delete it ({refused[1]})"
    said = text.split("\n", 1)[0].rpartition(" - ")[2][:300]
    return f"{said}: {cause}" if (cause := _cause(text)) else said


def _certificate(text: str) -> str:
    """What is wrong with it; empty: nothing that obstore says."""
    found = re.search(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)", text)
    if not found:
        return ""
    return _CERTIFICATE.get(found[1].removesuffix("Context"), f"is not valid ({found[1]})")


def _cause(text: str) -> str:
    """Why no connection was made, without addresses; empty: obstore does not say."""
    if "InvalidContentType" in text:
        return "it does not answer with TLS; is it http:// in endpoint.url?"
    if "IncompleteMessage" in text:
        return "the connection ended before an answer came"
    system = re.search(r'Os \{\s*code: \d+,\s*kind: \w+,\s*message: "([^"]*)"', text)
    other = re.search(r'"dns error",\s*Custom \{\s*kind: \w+,\s*error: "([^"]*)"', text)
    found = system or other
    return found[1] if found else ""
