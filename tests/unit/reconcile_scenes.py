"""What reconcile observes at one moment, for claims that take one look and need no history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from coxswain.wire import Fault, JobReport
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import Decision, Observed, Sizing
from coxswain_operator.reconcile.context import Context, build_context
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.settings import Settings
from coxswain_operator.views import ChildView, Manifest, PodView
from tests.unit.fake_cluster import data_mix, data_source, training_job

NOW = 2000.0
COORDINATOR = PodView("demo-coordinator-0", "c", "coordinator", 0, 0, phase="Running", ready=True, created=1000.0)
LOADER = PodView("demo-loader-0-0", "l", "loader", 0, 0, phase="Running", ready=True, created=1000.0)
TRAINER = PodView("demo-trainer-1-0", "t", "trainer", 1, 0, phase="Running", ready=True, created=1000.0)
GANG = (COORDINATOR, LOADER, replace(TRAINER, name="demo-trainer-0-0", uid="s", index=0), TRAINER)


def ended(code: int | None, pod: PodView = TRAINER, finished: float = 1500.0, **more: Any) -> PodView:
    phase = "Succeeded" if code == 0 else "Failed"
    return replace(pod, phase=phase, ready=False, exit_code=code, finished=finished, **more)


def condition(type_: str, status: str, since: float = 1000.0, reason: str = "") -> Manifest:
    return {"type": type_, "status": status, "reason": reason or type_, "lastTransitionTime": stamp(since)}


@dataclass(frozen=True)
class Scene:
    """What is there besides the member in question."""

    pods: tuple[PodView, ...] = ()
    report: JobReport | None = None
    seen: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    asked: int = 2  # trainers at the start
    status: Manifest = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    children: tuple[ChildView, ...] = ()
    rejection: Fault | None = None
    sizing: Sizing | None = None
    now: float = NOW

    @property
    def observed(self) -> Observed:
        job = training_job(**self.spec)
        trainers = {"desired": self.asked, "asked": self.asked}
        job["metadata"] |= {"uid": "u", "annotations": self.annotations, "creationTimestamp": stamp(1000.0)}
        job["status"] = {"seen": self.seen, "trainers": trainers, "startTime": stamp(1000.0), **self.status}
        return Observed(
            job, (data_source(),), (data_mix(),), pods=self.pods, children=self.children, report=self.report,
            rejection=self.rejection, sizing=self.sizing,
        )  # fmt: skip

    def context(self) -> Context:
        return build_context(self.observed, self.now, Settings())

    def decide(self) -> Decision:
        return reconcile(self.observed, self.now)
