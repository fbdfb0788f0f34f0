"""A scheduler of slots in virtual time, or a quota of them: several jobs, one slot a pod, no gangs of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from coxswain.names import LABEL_JOB
from coxswain.wire import JobReport
from coxswain_operator.cluster import Denied
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.actions import Decision, RequeueAt
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, data_mix, data_source, report, training_job

TIMEOUT = 100  # startTimeoutSeconds
TRAINS_SECONDS = 500.0


class SlotScheduler(FakeCluster):
    """Binds pods to free slots in an order drawn from `seed`; `fair`: of one job after the other, in turns.

    `quota`: pods beyond the slots are refused; passes over all jobs then take turns at their creates.
    A job trains from its last pod's binding on, and is then gone.
    """

    def __init__(
        self, slots: int, jobs: dict[str, dict[str, Any]], seed: int, fair: bool = False, quota: bool = False
    ) -> None:
        super().__init__(data_source(), data_mix())
        self.slots, self.random, self.jobs = slots, random.Random(seed), tuple(jobs)
        self.fair, self.quota = fair, quota
        for name, spec in jobs.items():
            body = {"startTimeoutSeconds": TIMEOUT, "data": {"loaders": {"min": 1, "max": 1}}, **spec}
            job = training_job(name, **body)
            job["metadata"]["uid"] = f"{name}-{seed}"
            self.put(job)
        self.started: dict[str, float] = {}
        self.done: list[str] = []
        self.half_since: dict[str, float] = {}
        self.longest_half = 0.0  # seconds that a job held slots without all of its pods
        self.sizes: dict[str, int] = {}  # pods of a job that trains

    async def report(self, job: Manifest) -> JobReport | None:
        return report("Running", 10) if job["metadata"]["name"] in self.started else None

    async def create(self, manifest: Manifest) -> Manifest:
        await asyncio.sleep(0)  # the turn of another job's pass
        if self.quota and manifest["kind"] == "Pod" and len(self.pods()) >= self.slots:
            raise Denied("Forbidden", f'pods "{manifest["metadata"]["name"]}" is forbidden: exceeded quota: slots')
        return await super().create(manifest)

    async def play(self, horizon: float) -> None:
        """Runs passes and bindings, from one moment at which something is due to the next, until all jobs are done."""
        controller, end = Controller(self, self, self.clock), self.now + horizon
        while len(self.done) < len(self.jobs) and self.now < end:
            due = [t for _ in range(3) for t in await self._settle(controller)]
            due += [since + TRAINS_SECONDS for since in self.started.values()]
            self.now = max(self.now + 1, min(due, default=end))
            self._finish()

    async def _settle(self, controller: Controller) -> list[float]:
        """One pass over every job, in a random order, with pods that come and go around it."""
        passes = [self._pass(controller, name) for name in self.random.sample(self.jobs, len(self.jobs))]
        found = await asyncio.gather(*passes) if self.quota else [await one for one in passes]
        self._bind()
        return [a.time for decision in found if decision for a in decision.actions if isinstance(a, RequeueAt)]

    async def _pass(self, controller: Controller, name: str) -> Decision | None:
        decision = await controller.pass_once(NAMESPACE, name)
        self.reap()
        return decision

    def _bind(self) -> None:
        waiting = [p for p in self.pods() if p["status"]["phase"] == "Pending"]
        free = self.slots - (len(self.pods()) - len(waiting))
        order = self.random.sample(waiting, len(waiting))
        for n, pod in enumerate(sorted(order, key=self._turn(order)) if self.fair else order):
            if n < free:
                self.run(pod)
            else:
                self.unschedulable(pod)
        for name in self.jobs:
            self._account(name)

    def _turn(self, order: list[Manifest]) -> Callable[[Manifest], int]:
        """How many pods of its job come before it."""
        of_job = [[p["metadata"]["name"] for p in order if p in list(self.pods_of(job))] for job in self.jobs]
        places = {name: place for names in of_job for place, name in enumerate(names)}
        return lambda pod: places[pod["metadata"]["name"]]

    def _account(self, name: str) -> None:
        pods = list(self.pods_of(name))
        bound = sum(p["status"]["phase"] == "Running" for p in pods)
        if bound and bound < self._wanted(name, pods):
            self.longest_half = max(self.longest_half, self.now - self.half_since.setdefault(name, self.now))
        else:
            self.half_since.pop(name, None)
        if bound and bound == self._wanted(name, pods) and name not in self.started:
            self.started[name], self.sizes[name] = self.now, bound

    def _wanted(self, name: str, pods: list[Manifest]) -> int:
        """Coordinator, loader and trainers: a quota keeps pods away."""
        return 2 + self.objects["TrainingJob", name]["status"]["trainers"]["desired"] if self.quota else len(pods)

    def _finish(self) -> None:
        for name, since in list(self.started.items()):
            if self.now >= since + TRAINS_SECONDS:
                del self.started[name], self.objects["TrainingJob", name]
                self.done.append(name)
                for pod in list(self.pods_of(name)):
                    self.vanish(pod)

    def pods_of(self, job: str) -> Iterable[Manifest]:
        return (p for p in self.pods() if p["metadata"]["labels"][LABEL_JOB] == job)
