"""The errors of the project, by what to do about them.

CoxswainError
├── Refused     the user's fault; retrying cannot help (exit 2). Says field, value, what is allowed, the way out
├── Retryable   may pass by itself or after a restart (exit 1)
└── Stale       the caller belongs to an older world generation; it must look at the world again
"""

from __future__ import annotations


class CoxswainError(Exception):
    """Base of all errors that this project raises on purpose."""

    reason = "Error"  # stable CamelCase: it is stored and sent, the class name is not


class Refused(CoxswainError):
    """The user's fault: a stable `reason` (CamelCase, in conditions and events) and a message."""

    def __init__(self, reason: str, message: str) -> None:
        """A name in the message may have any bytes: those that are no text, which no message can carry, are escaped."""
        self.reason, self.message = reason, message.encode(errors="backslashreplace").decode()
        super().__init__(self.message)


class Retryable(CoxswainError):
    """May pass without help: an absent service, a store that answers 503, a missed deadline.

    `after`: seconds for which the service asks not to be asked again.
    """

    reason = "Retryable"

    def __init__(self, message: str = "", after: float = 0.0) -> None:
        self.after = after
        super().__init__(message)


class Stale(CoxswainError):
    """The message carries an older world generation than the receiver's."""

    reason = "Stale"


def crashed(what: str, error: BaseException) -> Retryable:
    """An error of `what` that nothing expects, as a fault of its process: a thread that ends with one reports it nowhere."""
    return Retryable(f"{what} failed: {type(error).__name__}: {error}")
