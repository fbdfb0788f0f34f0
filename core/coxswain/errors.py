"""What can go wrong, as types.

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
    """The user's fault. Carries a stable `reason` (CamelCase, used in conditions and events) and a message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Retryable(CoxswainError):
    """May pass by itself: a service that is away, a store that answers 503, a deadline that ran out."""

    reason = "Retryable"


class Stale(CoxswainError):
    """The message carries an older world generation than the receiver's."""

    reason = "Stale"
