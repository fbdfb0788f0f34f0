"""`cox run`: the operator's reconcile over processes of this machine, until the job ends or stops."""

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

_POLL = 0.5  # seconds between two requests to the coordinator, which is on this machine
_LOOK = 0.25  # seconds between two updates of the display
_LAST_PASS = 10.0  # seconds for the last pass of reconcile
_STOPPED = 130  # exit code of a run that was stopped at once, as in shells


def run_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="YAML files with one TrainingJob and what it refers to.")
    ],
    workdir: Annotated[Path | None, typer.Option(help="Where the run keeps its state [runs/JOB].")] = None,
    until_step: Annotated[int | None, typer.Option(min=1, help="Save and stop before this step.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events, steps and the end as JSON, one object a line.")
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
        output.refuse(_STOPPED, "Stopped", "stopped at once; the same command resumes from the last checkpoint")
        raise typer.Exit(_STOPPED) from stop
    except OSError as error:
        output.refuse(FAILED, "MachineTrouble", f"cox run: {error}; repair that and repeat the command to resume")
        raise typer.Exit(FAILED) from error
    raise typer.Exit(code)


class StoppedAtOnce(Exception):
    """The second Ctrl-C."""


async def run(objects: list[Manifest], workdir: Path, until_step: int | None, output: Output) -> int:
    """Runs the job and returns the exit code."""
    clock = SteadyClock()
    async with LocalCluster(workdir, clock) as cluster:
        _log_to(workdir / "logs" / "cox.log")
        job = await apply(cluster, objects)
        if has_ended(job):
            output.say(
                f"this job has already ended: nothing is trained. For a new run, choose another --workdir than {workdir}"
            )
        else:
            check_ports()
            with output.display() as display:
                display.say(f"work directory {workdir}")
                job = await LocalRun(cluster, job, until_step, display, clock).until_end()
    output.end(job, workdir)
    return exit_code(job)


def _log_to(path: Path) -> None:
    """Sends the operator's log to a file: the terminal belongs to the display."""
    path.parent.mkdir(exist_ok=True)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=path, level=logging.INFO, format=form)
    logging.getLogger("httpx").setLevel(logging.WARNING)


class Interrupts:
    """Counts SIGINT and SIGTERM instead of ending on the first."""

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
    """One job on one cluster, with its display."""

    def __init__(
        self, cluster: LocalCluster, job: Manifest, until_step: int | None, display: Display, clock: Callable[[], float]
    ) -> None:
        self._cluster, self._until_step, self._display, self._clock = cluster, until_step, display, clock
        self._name: str = job["metadata"]["name"]
        self._report: JobReport | None = None
        self._reported, self._known_until = 0.0, 0.0
        self._watcher = Watcher(cluster.workdir)
        self._stop_requested = False

    async def until_end(self) -> Manifest:
        """Returns the job once it has ended or is suspended. Raises StoppedAtOnce."""
        control = HttpJobControl(self._cluster)
        controller = Controller(self._cluster, control, self._clock, poll_seconds=_POLL, on_report=self._on_report)
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
            passes.result()  # raises its error
        self._display.show(self._look(job))
        return job

    def _look(self, job: Manifest) -> View:
        return self._watcher.look(job, self._report, self._known_until)

    async def _steer(self, job: Manifest, interrupts: int) -> None:
        """Stops the job as requested: at a step, after a checkpoint, or at once."""
        if interrupts > 1:
            raise StoppedAtOnce
        if interrupts and not job["spec"].get("suspend"):
            self._display.say("saving a checkpoint, then stopping; Ctrl-C again stops at once")
            await self._request_stop({**job, "spec": {**job["spec"], "suspend": True}})
        elif self._until_step is not None and self._may_stop_at_step(job):
            notes = job["metadata"].get("annotations") or {}
            annotations = {**notes, names.ANNOTATION_STOP_AT: str(self._until_step)}
            await self._request_stop({**job, "metadata": {**job["metadata"], "annotations": annotations}})

    def _may_stop_at_step(self, job: Manifest) -> bool:
        """Whether reconcile has resumed the job: an earlier stop would still apply before."""
        return not self._stop_requested and condition(job, "Suspended").get("status") == "False"

    def _on_report(self, _: Manifest, report: JobReport | None) -> None:
        """Keeps the report. Its events are published before the next report is requested."""
        self._report = report or self._report
        self._known_until, self._reported = self._reported, time.time()

    async def _request_stop(self, job: Manifest) -> None:
        await self._cluster.replace(job)
        self._stop_requested = True

    def _is_over(self, job: Manifest) -> bool:
        """Whether the job has ended, or is suspended by request.

        A resumed job has the condition Suspended until its first reconcile.
        """
        requested = self._stop_requested or job["spec"].get("suspend", False)
        return has_ended(job) or (requested and is_suspended(job))

    async def _job(self) -> Manifest:
        job = await self._cluster.get("TrainingJob", NAMESPACE, self._name)
        if job is None:
            raise Refused("JobGone", f"TrainingJob {self._name} was deleted from {self._cluster.workdir}/cluster")
        return job
