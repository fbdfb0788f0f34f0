"""A job's whole life, as everybody but the operator plays it: a user, kubelets, and the job's coordinator.

    started, a trainer failed, another was drained, the coordinator was lost,
    suspended, scaled, resumed, restarted as a whole, completed

A chapter acts once and is over when it `holds`; `Stage.tick` is what kubelets and coordinator do by themselves meanwhile.
`Performance` takes a stage through all chapters. A test that disturbs the operator compares the end: `Stage.result`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coxswain.names import LABEL_ATTEMPT, LABEL_INDEX, LABEL_ROLE
from coxswain_operator.views import Manifest, member_name
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, RUNNING, Kubelet, apply_all
from tests.unit.fake_cluster import report, report_text


class Stage:
    """A namespace with one job in it, named demo."""

    def __init__(self, api: ApiServer, namespace: str, coordinator: FakeCoordinator | None = None) -> None:
        self.api, self.namespace = api, namespace
        self.coordinator = coordinator or FakeCoordinator()
        self.kubelet = Kubelet(api, namespace, coordinator.host if coordinator else RUNNING["podIP"])
        self.seen: list[Manifest] = []  # the pods, as tick() found them
        self.seen_job: Manifest = {}

    def tick(self) -> None:
        """Kubelets start what is pending and end what is deleted; a coordinator asked to stop leaves with everybody."""
        pods = self.seen = self.kubelet.pods()
        self.seen_job = self.job
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                self.kubelet.let_go(pod["metadata"]["name"])
        assert len({_member(p) for p in pods if _live(p)}) == sum(map(_live, pods)), "a member has two live pods"
        if self.coordinator.stops:
            self.coordinator.job_report = None
            self.coordinator.stops.clear()
            self.leave(3, report_text("Suspended", step=20))
        else:
            self.kubelet.run(pods)

    def leave(self, code: int, message: str) -> None:
        """Everybody leaves, the coordinator last."""
        running = [p["metadata"]["name"] for p in self.kubelet.pods() if p["status"]["phase"] == "Running"]
        for name in sorted(running, key=lambda name: "coordinator" in name):
            self.kubelet.end(name, code, message)

    @property
    def job(self) -> Manifest:
        found: Manifest = self.api.http.get(self.api.path("trainingjobs", "demo", namespace=self.namespace)).json()
        return found

    @property
    def status(self) -> Manifest:
        found: Manifest = self.job.get("status", {})
        return found

    @property
    def seen_status(self) -> Manifest:
        found: Manifest = self.seen_job.get("status", {})
        return found

    @property
    def state(self) -> str:
        """As last seen."""
        return next((c["reason"] for c in self.seen_status.get("conditions", ()) if c["type"] == "Succeeded"), "")

    def edit(self, subresource: str = "", **spec: Any) -> None:
        """A user's change."""
        place = self.api.path("trainingjobs", "demo", subresource, namespace=self.namespace)
        answer = self.api.http.patch(place, json={"spec": spec}, headers=MERGE)
        assert answer.is_success, answer.text

    def name(self, member: str) -> str:
        """Of the living pod of a member such as trainer-1."""
        return next(p["metadata"]["name"] for p in self.kubelet.pods() if _live(p) and _member(p) == member)

    def running(self, *members: str) -> bool:
        """Seen last: the job says that it runs, and these members do, in the present attempt."""
        attempt = str(self.seen_status.get("attempt", 0))
        alive = [p for p in self.seen if p["status"]["phase"] == "Running"]
        present = all(p["metadata"]["labels"][LABEL_ATTEMPT] == attempt for p in alive)
        return present and sorted(map(_member, alive)) == sorted(members) and self.state == "Running"

    def result(self) -> Manifest:
        """What must not depend on anything that befell the operator: the status without times and identities."""
        plain: Manifest = _timeless(self.status)
        return plain


@dataclass(frozen=True, slots=True)
class Chapter:
    name: str
    act: Callable[[Stage], None]
    holds: Callable[[Stage], bool]


def _apply(stage: Stage) -> None:
    stage.coordinator.job_report = report("Running", 10)
    restart_job = {"name": "poison", "onExitCodes": {"operator": "In", "values": [7]}, "action": "RestartJob"}
    apply_all(
        stage.api, stage.namespace,
        trainers={"count": 2, "minCount": 1, "maxCount": 4}, failurePolicy={"maxRestarts": 3, "rules": [restart_job]},
    )  # fmt: skip


def _fail(stage: Stage) -> None:
    stage.kubelet.end(stage.name("trainer-1"), 1)


def _drain(stage: Stage) -> None:
    stage.kubelet.end(stage.name("trainer-0"), 143, disrupted=True)


def _resume(stage: Stage) -> None:
    stage.edit(suspend=False)
    stage.coordinator.job_report = report("Running", 30, generation=2)


def _lose(stage: Stage) -> None:
    stage.kubelet.remove(stage.name("coordinator"))


def _poison(stage: Stage) -> None:
    stage.kubelet.end(stage.name("trainer-2"), 7)


def _complete(stage: Stage) -> None:
    stage.coordinator.job_report = None
    stage.leave(0, report_text("Completed", step=100, reason="StopReached"))


def _suspended(stage: Stage) -> bool:
    return stage.state == "Suspended" and not stage.seen


def _noticed(stage: Stage) -> bool:
    job = stage.seen_job
    return bool(job["status"]["observedGeneration"] == job["metadata"]["generation"])


_TWO = ("coordinator", "loader-0", "trainer-0", "trainer-1")
_THREE = (*_TWO, "trainer-2")
LIFE = (
    Chapter("started", _apply, lambda s: s.running(*_TWO)),
    Chapter("failed", _fail, lambda s: s.running(*_TWO)),
    Chapter("drained", _drain, lambda s: s.running(*_TWO)),
    Chapter("lost", _lose, lambda s: s.running(*_TWO)),
    Chapter("suspended", lambda s: s.edit(suspend=True), _suspended),
    Chapter("scaled", lambda s: s.edit("scale", replicas=3), _noticed),
    Chapter("resumed", _resume, lambda s: s.running(*_THREE)),
    Chapter("restarted", _poison, lambda s: s.seen_status["attempt"] == 1 and s.running(*_THREE)),
    Chapter("completed", _complete, lambda s: s.state == "Completed"),
)


class Performance:
    """The whole life on one stage. `meddle` hears the name of every chapter that has just begun."""

    def __init__(
        self, stage: Stage, deadline: float = 60.0, meddle: Callable[[str], None] = lambda chapter: None
    ) -> None:
        """`deadline`: seconds that a chapter may take."""
        self.stage, self._deadline, self._meddle = stage, deadline, meddle
        self._chapters = iter(LIFE)
        self._open()

    def _open(self) -> None:
        self.chapter = next(self._chapters, None)
        self._end = time.monotonic() + self._deadline
        if self.chapter is not None:
            self.chapter.act(self.stage)
            self._meddle(self.chapter.name)

    def goes_on(self) -> bool:
        """One moment of it; False once it is over. Raises AssertionError when a chapter takes too long."""
        if self.chapter is None:
            return False
        self.stage.tick()
        if self.chapter.holds(self.stage):
            self._open()
        elif time.monotonic() > self._end:
            found = f"{self.stage.status} with {self.stage.kubelet.names()}"
            raise AssertionError(f"{self.chapter.name}: after {self._deadline:g} s {found}")
        return self.chapter is not None


_TIMES = (
    "lastTransitionTime",
    "since",
    "start",
    "end",
    "startTime",
    "completionTime",
    "updatedAt",
    "activeSeconds",
    "activeSince",
    "uid",
    "pinned",  # a hash of what holds the uid
    "tokenSecret",  # likewise
    "selector",
)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in _TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def _member(pod: Manifest) -> str:
    labels = pod["metadata"]["labels"]
    return member_name(labels[LABEL_ROLE], int(labels[LABEL_INDEX]))


def _live(pod: Manifest) -> bool:
    return pod["status"]["phase"] not in ("Succeeded", "Failed")
