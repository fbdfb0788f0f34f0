"""A coordinator: the job's state, its HTTP calls and its driver, put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coxswain.config import JobConfig
from coxswain.wire import Finished, JobReport
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.report import job_report
from coxswain_coordinator.run import Run
from coxswain_coordinator.service import Calls
from coxswain_coordinator.worlds import Planner
from coxswain_link.metrics import build
from coxswain_link.serve import Service
from coxswain_link.store import Store


class Coordinator:
    """One job's coordinator. `author` names it in the plan log; `run_dir` gets the JSON-lines files."""

    def __init__(
        self, job: JobConfig, store: Store, token: str, planner: Planner, author: str, run_dir: Path | None,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        metrics = build("coordinator")
        self._run = Run(job, metrics, run_dir, clock)
        self._driver = Driver(self._run, store, planner, author)
        self._service = Service(token, lambda: self._run.generation, metrics)
        Calls(self._run, self._driver.count_goodbye).routes(self._service)

    async def start(self, host: str, port: int) -> int:
        """Serves; returns the port."""
        return await self._service.start(host, port)

    async def drive(self) -> Finished:
        """Runs the job to its end and tells every service of it."""
        finished = await self._driver.drive()
        await self._driver.farewell()
        return finished

    @property
    def finished(self) -> Finished | None:
        """How the job has ended; None as long as it goes on."""
        return self._run.finished

    async def stop(self) -> None:
        await self._service.stop()

    async def until(self, holds: Callable[[JobReport], bool], seconds: float) -> bool:
        """Waits until the report is as wished; False when the time is up first."""
        return bool(await self._run.bell.until(lambda: holds(self.report()) or None, seconds))

    def report(self) -> JobReport:
        return job_report(self._run)
