"""`cox`: the table of commands. A command's module is imported when it is called: help is fast."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TextIO


def _end_at_once() -> None:
    """Ctrl-C ends the process without a word, until a command has something to save."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _reset_signals() -> None:
    """What the caller has left of its own: where SIGCHLD is ignored no process has an exit code, and blocked signals wait."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__" or sys.argv[0].endswith("/cox"):
    _end_at_once()  # before imports that take a while

import typer  # noqa: E402
from typer.core import TyperCommand  # noqa: E402

from coxswain.exits import INTERRUPTED, Exit  # noqa: E402

app = typer.Typer(
    help="Coxswain: one operator for a whole language-model training run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich would double its time
)
plan = typer.Typer(
    help="Plan without a cluster: one step, or the layout of a job.", no_args_is_help=True, rich_markup_mode=None
)

COMMANDS = {
    "run": ("coxswain_cli.run:run_command", "Run a TrainingJob on this machine, or resume it."),
    "status": ("coxswain_cli.status:status_command", "Show what a job does, and why it waits."),
    "logs": ("coxswain_cli.logs:logs_command", "Show what the processes of a job have written."),
    "validate": (
        "coxswain_cli.validate:validate_command",
        "Check files offline and print every fault at once.",
    ),
    "scale": ("coxswain_cli.scale:scale_command", "Ask for another number of trainers of a job that runs."),
    "report": ("coxswain_cli.report:report_command", "Write one self-contained HTML page about a run."),
    "simulate": (
        "coxswain_cli.simulate:simulate_command",
        "Replay slow and lost devices in virtual time, beside other systems.",
    ),
    "crds": ("coxswain_cli.crds:crds_command", "Print the CustomResourceDefinitions."),
}
PLAN_COMMANDS = {
    "step": ("coxswain_cli.plan.step:step_command", "Plan one step for a file of sequence lengths."),
    "strategy": (
        "coxswain_cli.plan.strategy:strategy_command",
        "Choose tensor x stages x replicas for a file of sequence lengths.",
    ),
    "layout": ("coxswain_cli.plan.layout:layout_command", "Plan the layout of a cluster with slow or dead devices."),
}


class _Forward(TyperCommand):
    """Takes all arguments as they are: also a `--`, behind which a name may begin with a dash."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


def _add(group: typer.Typer, name: str, target: str, text: str) -> None:
    """Adds a command that passes all its arguments, --help too, to the function `module:name`, whose docstring is its help."""

    @group.command(name, cls=_Forward, help=text, add_help_option=False)
    def forward(context: typer.Context) -> None:
        module, function = target.split(":")
        inner = typer.Typer(add_completion=False, rich_markup_mode=None)
        try:
            inner.command()(getattr(importlib.import_module(module), function))
        except KeyboardInterrupt:  # importing may take a second
            raise SystemExit(INTERRUPTED) from None
        typer.main.get_command(inner)(args=context.args, prog_name=context.command_path)


@app.callback(invoke_without_command=True)
def version_option(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"cox {_installed_version()}")
        raise typer.Exit


def _installed_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("coxswain")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"


for _name, (_target, _text) in COMMANDS.items():
    _add(app, _name, _target, _text)
for _name, (_target, _text) in PLAN_COMMANDS.items():
    _add(plan, _name, _target, _text)
app.add_typer(plan, name="plan")


def main() -> None:
    """Runs a command. Every output is flushed here: Python itself would do it with a traceback."""
    _reset_signals()
    _end_at_once()
    _open_streams()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a path may have any letter
    sys.stderr = _words(sys.stderr)
    code: int | str | None = 0
    try:
        _check_folder()
        app(prog_name="cox")
    except SystemExit as leaving:
        code = leaving.code
    except OSError as error:
        code = _give_up(error)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the code is known; Python only clears up
    sys.exit(_flushed(code))


def _open_streams() -> None:
    """Sends nowhere what goes to a standard stream that the caller has closed: the next file would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # most often `number`, the lowest one that is free
            os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


class _Words(io.FileIO):
    """Standard error. What it does not take is lost, and changes neither the exit code nor standard output."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def _words(stderr: TextIO) -> TextIO:
    raw = _Words(stderr.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), stderr.encoding, "backslashreplace", line_buffering=True)


def _check_folder() -> None:
    """Every relative path would end with an error that names no path."""
    try:
        Path.cwd()
    except FileNotFoundError:
        typer.echo("cox: the current directory was deleted; change to one that exists", err=True)
        raise SystemExit(Exit.USER_FAULT) from None


def _flushed(code: int | str | None) -> int | str | None:
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or _give_up(error)
    return code


def _give_up(error: OSError) -> int:
    """Ends a command whose output cannot be written. A reader that has seen enough, such as `head`, needs no words."""
    from coxswain_cli.interrupts import complain, discard

    discard(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        complain(f"cox: {error.strerror}: {error.filename or 'standard output'}")
    return 1


if __name__ == "__main__":
    main()
