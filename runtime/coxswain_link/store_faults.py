"""What can be wrong with an object or its store, as types, and obstore's errors turned into them."""

from __future__ import annotations

import re

from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

from coxswain.errors import CoxswainError, Refused, Retryable

_DENIED = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch")
"""S3's codes, for where obstore does not look at them: listings, and answers with status 400."""


class NotFound(Retryable):
    """There is no such object (or folder)."""

    reason = "NotFound"


class StoreUnavailable(Retryable):
    """The store does not answer, or not as it should."""

    reason = "Away"


class BucketNotFound(StoreUnavailable):
    """There is no such bucket, and nobody of the job has ever seen it."""

    reason = "NoBucket"


class CorruptRead(StoreUnavailable):
    """What arrived is not what was sent."""

    reason = "Garbled"


class CorruptObject(Refused):
    """What is stored is not what was written."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "ObjectDamaged",
            f"{where} does not have the content any more that was written to it (its SHA-256 differs); restore it, or "
            "delete it if it can be made again",
        )


class Denied(Refused):
    """Credentials were refused, or there are none."""

    def __init__(self, message: str) -> None:
        super().__init__("AccessDenied", message)


def translated(error: Exception, where: str, credentials: str) -> CoxswainError:
    """An error of obstore, naming the object. `credentials`: where they come from; empty: there are none to speak of."""
    text = str(error)
    if credentials and "NoSuchBucket" in text:
        return BucketNotFound(f"{where}: there is no such bucket")
    if isinstance(error, (NotFoundError, FileNotFoundError)):
        return NotFound(f"{where} does not exist")
    denied = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
    if denied or (credentials and any(f"<Code>{code}<" in text for code in _DENIED)):
        of = f" {credentials}" if credentials else ""
        if "<Code>RequestTimeTooSkewed<" in text:
            return Denied(f"{where}: refused, since this machine's clock and the server's differ by too much; set it")
        return Denied(f"{where}: credentials{of} refused; check them, and the bucket's policy")
    full = "; make room there" if "No space left on device" in text else ""
    return StoreUnavailable(f"{where}: {_said(text)}{full}")


ERRORS = (BaseError, FileNotFoundError)
"""What obstore raises."""


def _said(text: str) -> str:
    """The same words for the same trouble: without times, counts and addresses."""
    if answer := re.search(r"status code: (\d+ [^:\n]*)(?:.*?<Code>(\w+)<)?", text, re.DOTALL):
        return f"the server answers {answer[1]}" + (f" ({answer[2]})" if answer[2] else "")
    return text.split("\n", 1)[0].rpartition(" - ")[2][:300]
