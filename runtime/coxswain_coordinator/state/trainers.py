"""The trainers of the current world: names, nodes, and their metrics, those of their workers' ends included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coxswain.exits import Exit
from coxswain.trainer_figures import TrainerFigures
from coxswain.wire import Register, TrainerReport, WorkerExit
from coxswain_coordinator.state.registry import MemberRegistry
from coxswain_link.metrics import MetricsRegistry as Metrics

_METRICS = tuple(f"coxswain_trainer_{name}" for name in ("compute_seconds", "wait_seconds", "slowdown"))


@dataclass(frozen=True, slots=True)
class Trainers:
    """`names`: by the world's index of a trainer."""

    names: tuple[str, ...]
    registry: MemberRegistry

    def agent(self, index: int) -> Register | None:
        """None: it has not registered with this coordinator."""
        return self.registry.member("trainer", self.names[index])

    def node(self, index: int) -> str:
        """Empty: not known."""
        agent = self.agent(index)
        return agent.node if agent else ""

    def place(self, index: int) -> str:
        """`trainer-1 (node-b)`; the name alone where no node is known."""
        node = self.node(index)
        return f"{self.names[index]} ({node})" if node else self.names[index]

    def report(self, f: TrainerFigures) -> TrainerReport:
        agent = self.agent(f.trainer)
        return TrainerReport(
            name=self.names[f.trainer], pod=agent.pod if agent else "", node=self.node(f.trainer), rank=f.rank,
            compute_seconds=f.compute_seconds, data_wait_seconds=f.data_wait_seconds, wait_seconds=f.wait_seconds,
            slowdown=f.slowdown,
        )  # fmt: skip

    def measure(self, figures: Iterable[TrainerFigures], metrics: Metrics) -> None:
        """One series of each metric for each trainer."""
        compute, wait, slowdown = (metrics[name] for name in _METRICS)
        for f in figures:
            labels = self.names[f.trainer], self.node(f.trainer)
            compute.labels(*labels).set(f.compute_seconds)
            wait.labels(*labels).set(f.data_wait_seconds + f.wait_seconds)
            slowdown.labels(*labels).set(f.slowdown)


def forget(metrics: Metrics) -> None:
    """Drops the series of a world that is over: its trainers may be gone, or on other nodes."""
    for name in _METRICS:
        metrics[name].clear()


class Exits:
    """Counts the ends of workers, each once: an agent repeats the call where the answer is lost. Failures also have a series
    without labels: those of many trainers come to one number."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._counted = metrics, set[tuple[int, str, int, int]]()

    def count(self, exit_: WorkerExit) -> None:
        key = exit_.generation, exit_.trainer, exit_.device, exit_.exit_code
        if key in self._counted:
            return
        self._counted.add(key)
        self._metrics["coxswain_worker_exits_total"].labels(exit_.trainer, exit_.exit_code).inc()
        if exit_.exit_code not in (Exit.DONE, Exit.STOPPED):
            self._metrics["coxswain_worker_failures_total"].inc()
