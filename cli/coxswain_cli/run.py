"""`cox run`: the operator's own reconcile over processes of this machine, until the job ends or is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from coxswain import names
from coxswain.api.jobfiles import load_run
from coxswain.errors import Refused
from coxswain.exits import Exit
from coxswain.wire import JobReport
from coxswain_cli.apply import NAMESPACE, apply
from coxswain_cli.display import Display
from coxswain_cli.jsonlines import JsonOutput
from coxswain_cli.output import Output, TextOutput
from coxswain_cli.preflight import check_ports, check_room
from coxswain_cli.progress import View, Watcher
from coxswain_cli.summary import FAILED, exit_code, has_ended, is_suspended
from coxswain_cli.workdir import condition, default_workdir
from coxswain_operator.clock import SteadyClock
from coxswain_operator.controller import Controller
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.local import LocalCluster
from coxswain_operator.single_job import run_job

Manifest = dict[str, Any]

_POLL = 0.5  # seconds between two questions to the coordinator, which sits on this machine
_LOOK = 0.25  # seconds between two looks at the run
_LAST_PASS = 10.0  # seconds that the pass which ends the job may take to tell of it
_STOPPED = 130  # exit code of a run that was stopped at once, as shells say it


def run_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="YAML files with one TrainingJob and what it refers to.")
    ],
    workdir: Annotated[Path | None, typer.Option(help="Where the run keeps its state [runs/JOB].")] = None,
    until_step: Annotated[int | None, typer.Option(min=1, help="Save and stop before this step.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Tell events, steps and the end as JSON, an object a line.")
    ] = False,
) -> None:
    """Run the TrainingJob of the given files on this machine, or resume it.

    Exit code 0: Succeeded, or stopped as asked. 1: Failed. 2: refused. Ctrl-C saves and stops; twice stops at once.
    """
    output: Output = JsonOutput() if as_json else TextOutput()
    try:
        objects = load_run(files)
        job = next(o for o in objects if o["kind"] == "TrainingJob")
        folder = workdir or default_workdir(job["metadata"]["name"])
        code = asyncio.run(run(objects, folder, until_step, output))
    except Refused as error:
        output.refuse(Exit.USER_FAULT, error.reason, f"cox run: {error.message}")
        raise typer.Exit(Exit.USER_FAULT) from error
    except (StoppedAtOnce, KeyboardInterrupt) as stop:
        output.refuse(_STOPPED, "Stopped", "stopped at once; the same command goes on from the last checkpoint")
        raise typer.Exit(_STOPPED) from stop
    except OSError as error:
        output.refuse(FAILED, "MachineTrouble", f"cox run: {error}; once that is mended, the same command goes on")
        raise typer.Exit(FAILED) from error
    raise typer.Exit(code)


class StoppedAtOnce(Exception):
    """The second Ctrl-C."""


async def run(objects: list[Manifest], workdir: Path, until_step: int | None, output: Output) -> int:
    """The whole run; its exit code."""
    clock = SteadyClock()
    async with LocalCluster(workdir, clock) as cluster:
        _log_to(workdir / "logs" / "cox.log")
        job = await apply(cluster, objects)
        if has_ended(job):
            output.say(f"ended before; nothing is trained. A new run needs another --workdir than {workdir}")
        else:
            check_ports()
            with output.display() as display:
                display.say(f"work directory {workdir}")
                job = await LocalRun(cluster, job, until_step, display, clock).until_end()
    output.end(job, workdir)
    return exit_code(job)


def _log_to(path: Path) -> None:
    """The operator's own words go to a file: the terminal belongs to the display."""
    path.parent.mkdir(exist_ok=True)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=path, level=logging.INFO, format=form)
    logging.getLogger("httpx").setLevel(logging.WARNING)


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) instead of dying of it."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _interrupt(self) -> None:
        self.count += 1


class LocalRun:
    """One job on one cluster, watched by a person."""

    def __init__(
        self, cluster: LocalCluster, job: Manifest, until_step: int | None, display: Display, clock: Callable[[], float]
    ) -> None:
        self._cluster, self._until_step, self._display, self._clock = cluster, until_step, display, clock
        self._name: str = job["metadata"]["name"]
        self._report: JobReport | None = None
        self._heard, self._known_until = 0.0, 0.0
        self._watcher = Watcher(cluster.workdir)
        self._stop_asked = False

    async def until_end(self) -> Manifest:
        """The job, ended or suspended. Raises StoppedAtOnce."""
        control = HttpJobControl(self._cluster)
        controller = Controller(self._cluster, control, self._clock, poll_seconds=_POLL, on_report=self._hear)
        leave = asyncio.Event()
        passes = asyncio.create_task(run_job(controller, self._cluster, NAMESPACE, self._name, leave))
        with Interrupts() as interrupts:
            try:
                while not (self._is_over(job := await self._job()) or passes.done()):
                    self._display.show(self._look(job))
                    check_room(self._cluster.workdir)
                    await self._steer(job, interrupts.count)
                    await asyncio.wait([passes], timeout=_LOOK)
                leave.set()
                await asyncio.wait([passes], timeout=_LAST_PASS)
            finally:
                passes.cancel()
                await asyncio.wait([passes])
                await control.close()
        if not passes.cancelled():
            passes.result()  # raises what it died of
        self._display.show(self._look(job))
        return job

    def _look(self, job: Manifest) -> View:
        return self._watcher.look(job, self._report, self._known_until)

    async def _steer(self, job: Manifest, interrupts: int) -> None:
        """Passes on what the person wants: a stop at a step, a stop soon, a stop now."""
        if interrupts > 1:
            raise StoppedAtOnce
        if interrupts and not job["spec"].get("suspend"):
            self._display.say("stopping: a checkpoint first; Ctrl-C again stops at once")
            await self._ask({**job, "spec": {**job["spec"], "suspend": True}})
        elif self._until_step is not None and self._may_stop_at_step(job):
            notes = job["metadata"].get("annotations") or {}
            annotations = {**notes, names.ANNOTATION_STOP_AT: str(self._until_step)}
            await self._ask({**job, "metadata": {**job["metadata"], "annotations": annotations}})

    def _may_stop_at_step(self, job: Manifest) -> bool:
        """Not before reconcile has resumed a job that an earlier stop had suspended: that stop would still bind."""
        return not self._stop_asked and condition(job, "Suspended").get("status") == "False"

    def _hear(self, _: Manifest, report: JobReport | None) -> None:
        """A report's events are published before the next report is asked for."""
        self._report = report or self._report
        self._known_until, self._heard = self._heard, time.time()

    async def _ask(self, job: Manifest) -> None:
        await self._cluster.replace(job)
        self._stop_asked = True

    def _is_over(self, job: Manifest) -> bool:
        """Suspended counts only when it was asked for: a resumed job still says so until its first reconcile."""
        asked = self._stop_asked or job["spec"].get("suspend", False)
        return has_ended(job) or (asked and is_suspended(job))

    async def _job(self) -> Manifest:
        job = await self._cluster.get("TrainingJob", NAMESPACE, self._name)
        if job is None:
            raise Refused("JobGone", f"TrainingJob {self._name} was deleted from {self._cluster.workdir}/cluster")
        return job
