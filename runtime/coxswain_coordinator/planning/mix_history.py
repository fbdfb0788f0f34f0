"""The mix records of a run: an edit of the mix is recorded once, whatever restarts meanwhile.

Blocking: runs in a thread.
"""

from __future__ import annotations

import msgspec

from coxswain.config import MixConfig, PhaseConfig
from coxswain.errors import Refused
from coxswain.membership.mix_record import differences, record_of
from coxswain.membership.values import MixRecord
from coxswain.planlog import mix_key
from coxswain_coordinator.planning.plan_log import PlanLog


class MixHistory:
    """All records of a plan log; `latest` is in force for steps that are not committed yet."""

    def __init__(self, log: PlanLog) -> None:
        self._log = log
        self._records: list[MixRecord] = []

    @property
    def latest(self) -> MixRecord:
        return self._records[-1]

    def record(self, number: int) -> MixRecord:
        """Raises Refused (TornPlanLog) for one that a segment names and the log lacks."""
        if number >= len(self._records):
            self.read()
        if number >= len(self._records):
            raise Refused(
                "TornPlanLog",
                f"{mix_key(number)} is missing and a segment names it; restore it, or start a new run with a fresh "
                "checkpoint.uri",
            )
        return self._records[number]

    def offer(self, mix: MixConfig) -> str:
        """Records the mix if it differs from the latest record. Returns what has changed; empty: nothing."""
        self.read()
        if not self._records:
            self._records.append(self._log.claim_mix(self._first(mix)))
        changed = differences(self.latest, record_of(mix, 0))
        if not changed:
            return ""
        claimed = record_of(mix, len(self._records))
        self._records.append(self._log.claim_mix(claimed))
        return changed if self.latest == claimed else self.offer(mix)

    def first_step(self) -> int:
        """The first step without a recorded membership: an edit counts from there, however far ahead of training that is."""
        segment = self._log.last_membership()
        return segment.after.step if segment else 0

    def read(self) -> None:
        """Reads the records that are new."""
        while (found := self._log.mix(len(self._records))) is not None:
            self._records.append(found)

    def _first(self, mix: MixConfig) -> MixRecord:
        """What the run began with. A log of a release without records has the phases in its segments."""
        segment = self._log.last_membership()
        if segment is None:
            return record_of(mix, 0)
        phases = msgspec.json.decode(segment.phases, type=tuple[PhaseConfig, ...])
        return msgspec.structs.replace(record_of(mix, 0), phases=phases)
