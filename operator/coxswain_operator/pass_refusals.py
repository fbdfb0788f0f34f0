"""What the cluster did not take of the last pass over each job: the next pass decides about it, and says it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coxswain.errors import Refused, Retryable
from coxswain.wire import Fault
from coxswain_operator.backoff import asked_by
from coxswain_operator.cluster import Conflict
from coxswain_operator.refusals import fault_of
from coxswain_operator.views import Manifest


@dataclass(slots=True)
class PassRefusals:
    """Of one pass over one job."""

    rejection: Fault | None = None  # the first: of a child, or of a child's deletion; also a failure of the server
    taken: list[tuple[str, str]] = field(default_factory=list)  # kind and name of children whose names others hold
    after: float = 0.0  # seconds for which the server asks not to be asked again
    quarantine: str = ""  # why a NodeQuarantine could not be made or ended
    conflicts: set[str] = field(default_factory=set)  # objects whose write met a conflict
    before: frozenset[str] = frozenset()  # likewise in the pass before


JobKey = tuple[str, str, str]  # namespace, name, uid


def key_of(job: Manifest) -> JobKey:
    meta = job["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]


class Refusals:
    """By job. A job that is made again under the name of another begins with none."""

    def __init__(self) -> None:
        self._of: dict[JobKey, PassRefusals] = {}

    def forget(self, namespace: str, name: str) -> None:
        """Drops those of jobs of this name, which are gone."""
        self._of = {key: found for key, found in self._of.items() if key[:2] != (namespace, name)}

    def of(self, key: JobKey) -> PassRefusals:
        """Of the last pass, or of the one under way. To be read only."""
        return self._of.get(key) or PassRefusals()

    def begin(self, key: JobKey) -> None:
        """Forgets the pass before, but for what met a conflict in it."""
        if before := self._of.pop(key, PassRefusals()).conflicts:
            self._of[key] = PassRefusals(before=frozenset(before))

    def reject(self, key: JobKey, what: str, error: Refused | Retryable | Conflict) -> bool:
        """False: a conflict that this object did not meet in the pass before, as of writes that meet in a quota's status."""
        mine = self._kept(key)
        if isinstance(error, Conflict):
            mine.conflicts.add(what)
            if what not in mine.before:
                return False
        mine.after = max(mine.after, asked_by(error))
        self.set_fault(key, fault_of(what, error))
        return True

    def set_fault(self, key: JobKey, fault: Fault) -> None:
        """The first of a pass stays."""
        mine = self._kept(key)
        mine.rejection = mine.rejection or fault

    def set_taken(self, key: JobKey, kind: str, name: str) -> None:
        self._kept(key).taken.append((kind, name))

    def set_quarantine(self, key: JobKey, what: str, error: Refused | Retryable | Conflict) -> None:
        self._kept(key).quarantine = fault_of(what, error).message

    def _kept(self, key: JobKey) -> PassRefusals:
        return self._of.setdefault(key, PassRefusals())
