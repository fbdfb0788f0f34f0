"""A straggler in words and in a report. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coxswain.stragglers.values import Cause
from coxswain.wire import StragglerReport

CAUSES = {Cause.DEVICE: "Device", Cause.NODE: "Node"}


@dataclass(frozen=True, slots=True)
class Straggler:
    """A confirmed one. `speed`: what its replica is planned with from step `planned_from` on; None: it is only named, or no
    plan has it yet."""

    trainer: str
    device: int
    node: str
    slowdown: float
    since_step: int
    since: float
    cause: Cause
    replica: int
    speed: float | None
    planned_from: int | None = None

    @property
    def index(self) -> int:
        """Of its trainer."""
        return int(self.trainer.rpartition("-")[2])

    @property
    def name(self) -> str:
        place = f"{self.trainer} device {self.device}"
        return f"{place} ({self.node})" if self.node else place

    @property
    def action(self) -> str:
        if self.speed is None:
            return "Warn: it is named and nothing else is done"
        first = "the next plans" if self.planned_from is None else f"step {self.planned_from}"
        return f"Rebalance: replica {self.replica} is planned at speed {self.speed:.2f} from {first} on"

    @property
    def report(self) -> StragglerReport:
        return StragglerReport(
            self.trainer, self.device, self.node, self.slowdown, self.since_step, self.since, CAUSES[self.cause],
            self.action,
        )  # fmt: skip

    def kept(self, before: Straggler | None) -> Straggler:
        """This one, with the first step of its plan and its first time, as long as its speed is the one from before."""
        if before is None:
            return self
        return replace(
            self, since=before.since, planned_from=before.planned_from if before.speed == self.speed else None
        )

    def moved(self, replica: int, speed: float | None, first_step: int) -> Straggler:
        """The same device in a world that begins with this step: what began later begins with it."""
        since, planned = min(self.since_step, first_step), self.planned_from
        reached = speed == self.speed and planned is not None and planned < first_step
        return replace(self, replica=replica, speed=speed, since_step=since, planned_from=planned if reached else None)


def detected(found: Straggler, step: int) -> str:
    whole = "; most devices of the node are slow alike" if found.cause == Cause.NODE else ""
    return (
        f"{found.name} computes {found.slowdown:.2f} x as long as its work takes on peers, or took before, since step "
        f"{found.since_step}, confirmed at step {step}{whole}. {found.action}"
    )


def recovered(found: Straggler, step: int) -> str:
    return f"{found.name} computes at its normal speed again at step {step}; it was {found.slowdown:.2f} x slower"


def returned(name: str, probes: int) -> str:
    return f"{name}, on standby, computes at its normal speed in {probes} probes in a row: layouts are planned with it"
