"""A coordinator: the job's state, its HTTP calls and its driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.wire import Finished, JobReport
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.checkpoint.claim import Claim
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.planning.mix_edits import Edits
from coxswain_coordinator.planning.placers import Planner
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.world.activity import show_activity
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_link.store import Store


class Coordinator:
    """One job's coordinator.

    `author` names it in the plan log; `run_dir` gets the JSON-lines files; `edits` returns the
    job's mix when it has been edited. It never resumes below `recorded_step`, and takes no member
    that has read another ConfigMap than `config`. `claim`: on the location of the checkpoints, where
    other runs could reach it. `hardware`: the job's profile, if it has one. `state`: all that it knows.
    """

    def __init__(
        self, job: JobConfig, store: Store, token: str, planner: Planner, author: str, run_dir: Path | None,
        clock: Callable[[], float], edits: Edits = lambda: None, recorded_step: int = 0, claim: Claim | None = None,
        config: str = "", hardware: Hardware | None = None,
    ) -> None:  # fmt: skip
        metrics, self._claim = build("coordinator"), claim
        self.state = JobState(job, metrics, run_dir, clock)
        show_activity(metrics["coxswain_activity"], self.state)
        self.state.recorded_step, self.state.config = recorded_step, config
        if hardware:
            self.state.hardware = hardware
            self.state.ladder.go_by(hardware)
        self._driver = Driver(self.state, store, planner, author, edits, claim)
        self._service = HttpService(
            token, lambda: self.state.generation, metrics, problem=lambda: self._driver.problem(time.monotonic())
        )
        Handlers(self.state, self._driver.ack_end).routes(self._service)

    async def start(self, host: str, port: int) -> int:
        """Serves; returns the port."""
        return await self._service.start(host, port)

    async def drive(self) -> Finished:
        """Runs the job to its end and answers every service with it."""
        finished = await self._driver.drive()
        await self._driver.drain()
        return finished

    @property
    def finished(self) -> Finished | None:
        """How the job has ended; None while it runs."""
        return self.state.finished

    async def stop(self) -> None:
        await asyncio.to_thread(self._driver.close)
        await asyncio.to_thread(self.state.tracking.close)
        if self._claim is not None:
            await self._claim.release()
        await self._service.stop()

    async def wait_until(self, holds: Callable[[JobReport], bool], seconds: float) -> bool:
        """Waits until `holds` is true of the report; False when the time is up first."""
        return bool(await self.state.notifier.wait_until(lambda: holds(self.report()) or None, seconds))

    def report(self) -> JobReport:
        return job_report(self.state)
