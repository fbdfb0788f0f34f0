"""`cox run`: the operator's reconcile over processes of this machine, until the job ends or stops."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from coxswain import names
from coxswain.api.jobfiles import load_run
from coxswain.errors import Refused
from coxswain.exits import INTERRUPTED, Exit
from coxswain.wire import JobReport
from coxswain_cli.again import forget_checkpoint, nothing_to_do, reopen
from coxswain_cli.apply import NAMESPACE, apply
from coxswain_cli.display import Display
from coxswain_cli.interrupts import Interrupts, SteadyStream
from coxswain_cli.jsonlines import JsonOutput
from coxswain_cli.limits import check_limits
from coxswain_cli.logfile import log_to
from coxswain_cli.output import Output, TextOutput
from coxswain_cli.preflight import (
    check_loopback,
    check_ports,
    check_room,
    check_secrets,
    check_stops,
    check_volumes,
    lock_checkpoints,
)
from coxswain_cli.progress import View, Watcher
from coxswain_cli.scale import with_trainers
from coxswain_cli.summary import FAILED, exit_code, has_ended, is_suspended
from coxswain_cli.workdir import condition, default_workdir, taken_request
from coxswain_operator.clock import SteadyClock
from coxswain_operator.controller import Controller
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.local import LocalCluster
from coxswain_operator.single_job import run_job

Manifest = dict[str, Any]

_POLL = 0.5  # seconds between two requests to the coordinator, which is on this machine
_LOOK = 0.25  # seconds between two updates of the display
_LEAVE = 3.0  # seconds for the services of an ended job to leave by themselves
_LAST_PASS = 10.0  # seconds for the last pass of reconcile


def _folder(text: str) -> Path:
    """An empty text, as of a shell's variable that is not set, would be the current folder."""
    if not text:
        raise typer.BadParameter("it is empty; give a folder (. is this one), or leave the option out")
    return Path(text)


def run_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="YAML files with one TrainingJob and what it refers to; -: standard input."
        ),
    ],
    workdir: Annotated[
        Path | None, typer.Option(parser=_folder, metavar="PATH", help="Where the run keeps its state [runs/JOB].")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the job, such as spec.stop.steps=100."),
    ] = None,
    until_step: Annotated[int | None, typer.Option(min=1, help="Save and stop before this step.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events, steps and the end as JSON, one object a line.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Resume a job that has failed, with fresh counters.")] = False,
    accept_older: Annotated[
        bool,
        typer.Option(
            "--accept-older-checkpoint", help="Resume from the newest checkpoint that is there, or from the beginning."
        ),
    ] = False,
) -> None:
    """Run the TrainingJob of the given files on this machine, or resume it.

    Exit code 0: Succeeded, or stopped as asked. 1: Failed. 2: refused. 130: stopped at once. Ctrl-C, SIGTERM and a
    lost terminal save and stop; twice stops at once.
    """
    options = Options(tuple(settings or ()), until_step, retry, accept_older)
    with Interrupts() as interrupts, SteadyStream(sys.stdout, interrupts) as stream:
        out = cast("TextIO", stream)
        output: Output = JsonOutput(out) if as_json else TextOutput(out)
        raise typer.Exit(_run_files(files, workdir, options, output, interrupts))


@dataclass(frozen=True, slots=True)
class Options:
    settings: tuple[str, ...] = ()
    until_step: int | None = None
    retry: bool = False
    accept_older: bool = False


def _run_files(
    files: list[Path], workdir: Path | None, options: Options, output: Output, interrupts: Interrupts
) -> int:
    """Returns the exit code; every refusal goes to the output."""
    try:
        objects = load_run(files, options.settings)
        check_volumes(objects)
        check_secrets(objects)
        job = next(o for o in objects if o["kind"] == "TrainingJob")
        check_stops(job)
        check_limits(job)
        folder = workdir or default_workdir(job["metadata"]["name"])
        return asyncio.run(run(objects, folder, options, output, interrupts))
    except Refused as error:
        output.refuse(Exit.USER_FAULT, error.reason, f"cox run: {error.message}")
        return Exit.USER_FAULT
    except (StoppedAtOnce, KeyboardInterrupt):
        output.refuse(INTERRUPTED, "Stopped", "stopped at once; the same command resumes from the last checkpoint")
        return INTERRUPTED
    except OSError as error:
        output.refuse(FAILED, "MachineTrouble", f"cox run: {error}; repair that and repeat the command to resume")
        return FAILED


class StoppedAtOnce(Exception):
    """The second Ctrl-C."""


async def run(objects: list[Manifest], workdir: Path, options: Options, output: Output, interrupts: Interrupts) -> int:
    """Runs the job and returns the exit code."""
    clock = SteadyClock()
    async with LocalCluster(workdir, clock) as cluster:
        log_to(workdir / "logs" / "cox.log")
        taken_request(workdir)  # of an earlier run
        job = await reopen(cluster, await apply(cluster, objects), options.retry)
        if has_ended(job):
            output.say(nothing_to_do(job, workdir))
        else:
            check_loopback()
            check_ports()
            job = await forget_checkpoint(cluster, job) if options.accept_older else job
            with lock_checkpoints(job), output.display() as display:
                display.say(f"work directory {workdir}")
                interrupts.counting = True  # from here on there are pods, to the end of the command
                job = await LocalRun(cluster, job, options.until_step, display, clock).until_end(interrupts)
    output.end(job, workdir)
    return exit_code(job)


class LocalRun:
    """One job on one cluster, with its display."""

    def __init__(
        self, cluster: LocalCluster, job: Manifest, until_step: int | None, display: Display, clock: Callable[[], float]
    ) -> None:
        self._cluster, self._until_step, self._display, self._clock = cluster, until_step, display, clock
        self._name: str = job["metadata"]["name"]
        self._report: JobReport | None = None
        self._last_report_time, self._known_until = 0.0, 0.0
        self._watcher = Watcher(cluster.workdir)
        self._stop_requested = False

    async def until_end(self, interrupts: Interrupts) -> Manifest:
        """Returns the job once it has ended or is suspended. Raises StoppedAtOnce."""
        keys = self._cluster.token_keys()
        control = HttpJobControl(self._cluster, keys=keys)
        controller = Controller(
            self._cluster, control, self._clock, poll_seconds=_POLL, on_report=self._on_report, keys=keys
        )
        leave = asyncio.Event()
        passes = asyncio.create_task(run_job(controller, self._cluster, NAMESPACE, self._name, leave))
        try:
            while not (self._is_over(job := await self.job()) or passes.done()):
                self._display.show(self._look(job))
                self._cluster.check_writable()
                check_room(self._cluster.workdir)
                await self._steer(job, interrupts.count)
                await asyncio.wait([passes], timeout=_LOOK)
            if has_ended(job):
                await asyncio.wait([passes], timeout=_LEAVE)
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
        """Does what is requested: a stop at a step, after a checkpoint or at once, another number of trainers."""
        if interrupts > 1:
            raise StoppedAtOnce
        if interrupts and not job["spec"].get("suspend"):
            self._display.say("saving a checkpoint, then stopping; Ctrl-C again stops at once")
            await self._request_stop({**job, "spec": {**job["spec"], "suspend": True}})
        elif (trainers := taken_request(self._cluster.workdir)) is not None:
            await self._cluster.replace(with_trainers(job, trainers))
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
        self._known_until = self._last_report_time
        self._last_report_time = time.time()

    async def _request_stop(self, job: Manifest) -> None:
        await self._cluster.replace(job)
        self._stop_requested = True

    def _is_over(self, job: Manifest) -> bool:
        """Whether the job has ended, or is suspended by request.

        A resumed job has the condition Suspended until its first reconcile.
        """
        requested = self._stop_requested or job["spec"].get("suspend", False)
        return has_ended(job) or (requested and is_suspended(job))

    async def job(self) -> Manifest:
        job = await self._cluster.get("TrainingJob", NAMESPACE, self._name)
        if job is None:
            raise Refused("JobGone", f"TrainingJob {self._name} was deleted from {self._cluster.workdir}/cluster")
        return job
