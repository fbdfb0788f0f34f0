"""Which save the ranks of a world wait for: one that ends it, or the one before that of the open step. Pure."""

from __future__ import annotations

from collections.abc import Collection

from coxswain_coordinator.state.session import Session


def last_save(session: Session) -> int | None:
    """The step whose checkpoint is all that this world still has to do; None: it has more to do, or less."""
    move = session.move
    if session.ending is not None:
        step = session.ending.step
    elif move is not None and move.decided and move.saves:
        step = move.step
    else:
        return None
    return step if session.saved < step <= session.book.open else None


def save_before(session: Session, late: Collection[int]) -> int | None:
    """The step whose checkpoint late ranks still write: one at a time, and another is due at the open step, which waits."""
    step = session.book.open
    if not late or not session.may_be_saved(step):
        return None
    begun = range(max(session.saved + 1, session.record.first_step), step)
    return next((s for s in begun if session.may_be_saved(s) and not session.pending.by(s).issuperset(late)), None)


def without(session: Session, step: int) -> list[int]:
    """The ranks that have not written their part of this checkpoint."""
    saved = session.pending.by(step)
    return [seat.rank for seat in session.world.seats if seat.rank not in saved]
