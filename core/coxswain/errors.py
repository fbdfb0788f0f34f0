"""The errors of the project, by what to do about them.

CoxswainError
├── Refused     the user's fault; retrying cannot help (exit 2). Says field, value, what is allowed, the way out
├── Retryable   may pass by itself or after a restart (exit 1)
└── Stale       the caller belongs to an older world generation; it must look at the world again
"""

from __future__ import annotations


def escaped(text: str) -> str:
    """The text with escapes for what no message can carry: bytes of a name that are no text."""
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """What an error of the user's code or of a library says, which may fail as well, in a form that a message can carry."""
    try:
        return escaped(str(error))
    except Exception as broken:
        return f"(its text fails with {type(broken).__name__})"


class CoxswainError(Exception):
    """Base of all errors that this project raises on purpose."""

    reason = "Error"  # stable CamelCase: it is stored and sent, the class name is not


class Refused(CoxswainError):
    """The user's fault: a stable `reason` (CamelCase, in conditions and events) and a message."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, escaped(message)
        super().__init__(self.message)


class Retryable(CoxswainError):
    """May pass without help: an absent service, a store that answers 503, a missed deadline.

    `after`: seconds for which the service asks not to be asked again.
    """

    reason = "Retryable"

    def __init__(self, message: str = "", after: float = 0.0) -> None:
        self.after = after
        super().__init__(escaped(message))


class Stale(CoxswainError):
    """The message carries an older world generation than the receiver's."""

    reason = "Stale"


def crashed(what: str, error: BaseException) -> Retryable:
    """An error of `what` that nothing expects, as a fault of its process: a thread that ends with one reports it nowhere."""
    return Retryable(f"{what} failed: {type(error).__name__}: {error}")
