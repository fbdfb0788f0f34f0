"""The layout that mode Auto has chosen for a job: what worlds have of it, and when that is an event."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.layout import Layout, has_shapes
from coxswain.plan.strategy.values import described
from coxswain.planlog import StrategyRecord


def with_chosen(job: JobConfig, record: StrategyRecord | None) -> JobConfig:
    """The job with the layout of this record; without a record as it is."""
    if record is None:
        return job
    return replace(job, parallelism=replace(job.parallelism, layout=record.strategy.chosen.replicas))


class JobStrategy:
    """The newest record of the plan log; none in another mode."""

    def __init__(self, job: JobConfig) -> None:
        self._job = job
        self._mine = False  # chosen by this coordinator
        self._announced: StrategyRecord | None = None
        self.record: StrategyRecord | None = None

    def take(self, record: StrategyRecord, mine: bool) -> None:
        self.record, self._mine = record, mine

    @property
    def job(self) -> JobConfig:
        """The job; under mode Auto with the layout that was chosen."""
        return with_chosen(self._job, self.record)

    def used_by(self, layout: Layout | None) -> StrategyRecord | None:
        """The record, unless the world has another layout: replicas that a loss left whole, or the ladder's."""
        found = self.record
        return None if found and layout and not has_shapes(layout, found.strategy.chosen.replicas) else found

    def announce(self, layout: Layout, saved: bool) -> str:
        """What event StrategyChosen says of a world that begins; empty: nothing.

        The first world that has a layout is one. Of a record of another coordinator only until a checkpoint is `saved`: that
        coordinator may have ended before anything read its event, and later it has not.
        """
        found = self.used_by(layout)
        if found is None or found == self._announced or (saved and not self._mine):
            return ""
        self._announced = found
        return described(found.strategy)
