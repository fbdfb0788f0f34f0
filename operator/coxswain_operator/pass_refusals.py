"""What the cluster did not take of the last pass over each job: the next pass decides about it, and says it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coxswain.errors import Refused, Retryable
from coxswain.wire import Fault
from coxswain_operator.cluster import Conflict
from coxswain_operator.refusals import fault_of


@dataclass(slots=True)
class PassRefusals:
    """Of one pass over one job."""

    rejection: Fault | None = None  # the first: of a child, or of a child's deletion; also a failure of the server
    taken: list[tuple[str, str]] = field(default_factory=list)  # kind and name of children whose names others hold
    quarantine: str = ""  # why a NodeQuarantine could not be made or ended
    conflicts: set[str] = field(default_factory=set)  # objects whose write met a conflict
    before: frozenset[str] = frozenset()  # likewise in the pass before


class Refusals:
    """By the job's uid."""

    def __init__(self) -> None:
        self._of: dict[str, PassRefusals] = {}

    def of(self, uid: str) -> PassRefusals:
        """Of the last pass, or of the one under way. To be read only."""
        return self._of.get(uid) or PassRefusals()

    def begin(self, uid: str) -> None:
        """Forgets the pass before, but for what met a conflict in it."""
        if before := self._of.pop(uid, PassRefusals()).conflicts:
            self._of[uid] = PassRefusals(before=frozenset(before))

    def reject(self, uid: str, what: str, error: Refused | Retryable | Conflict) -> bool:
        """False: a conflict that this object did not meet in the pass before, as of writes that meet in a quota's status."""
        mine = self._kept(uid)
        if isinstance(error, Conflict):
            mine.conflicts.add(what)
            if what not in mine.before:
                return False
        self.set_fault(uid, fault_of(what, error))
        return True

    def set_fault(self, uid: str, fault: Fault) -> None:
        """The first of a pass stays."""
        mine = self._kept(uid)
        mine.rejection = mine.rejection or fault

    def set_taken(self, uid: str, kind: str, name: str) -> None:
        self._kept(uid).taken.append((kind, name))

    def set_quarantine(self, uid: str, what: str, error: Refused | Retryable | Conflict) -> None:
        self._kept(uid).quarantine = fault_of(what, error).message

    def _kept(self, uid: str) -> PassRefusals:
        return self._of.setdefault(uid, PassRefusals())
