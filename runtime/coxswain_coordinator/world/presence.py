"""Decides with which of a job's trainers a world is formed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coxswain.config import JobConfig
from coxswain.wire import World
from coxswain_coordinator.world.stalls import SILENCE

LOST_SECONDS = 3.0
"""Seconds from a world's loss until it is formed without trainers that have not registered again."""

LEAVING_SECONDS = 70.0
"""The same as long as agents make their workers leave: what those compute is not cut short, and then they hold state."""

NEW_SECONDS = 10.0
"""The same for a new coordinator: agents notice it by their next call."""


def least_trainers(job: JobConfig, size: int) -> int:
    """Of a job of `size` trainers. Without `trainers.minCount` all of them: such a job has no other size than its own."""
    return job.min_trainers if job.min_trainers < job.trainers or size != job.trainers else size


def are_gathered(job: JobConfig, size: int, present: int, waited: float, patience: float) -> bool:
    """Whether a world can be formed with the trainers that are present, `waited` seconds after the first could register."""
    return present >= size or (present >= least_trainers(job, size) and waited >= patience)


def still_leaving(agents: Iterable[str], world: World, last_heard: Mapping[int, float], now: float) -> frozenset[str]:
    """Of the agents that make their workers leave this world, those that may still run: the workers of one that has ended have
    ended with it, and send no heartbeats."""
    heard = dict[str, float]()
    for seat in world.seats:
        name = world.trainers[seat.device.trainer]
        heard[name] = max(last_heard.get(seat.rank, now), heard.get(name, 0.0))
    return frozenset(name for name in agents if now - heard.get(name, now) <= SILENCE)
