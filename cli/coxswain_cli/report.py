"""`cox report`: one HTML page about a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from coxswain.errors import Refused
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.reporting.page import page
from coxswain_cli.reporting.read import read_run


def write_report(directory: Path, output: Path | None = None, steps: tuple[int, ...] = ()) -> Path:
    """Writes the report of a work directory and returns its path: DIR/report.html by default.

    Raises Refused when the folder belongs to no run, or nothing is recorded of a requested step.
    """
    run = read_run(directory, steps)
    target = directory / "report.html" if output is None else output
    if not target.name:
        raise Refused("BadOutput", f"--output {str(target)!r} names no file; give the path of a file to write")
    _write(target, page(run))
    return target


def _write(target: Path, text: str) -> None:
    """Replaces the page atomically: a browser may be reading the old one."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)


def report_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR|JOB", help="Work directory of a run, or the job's name.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [DIR/report.html].")] = None,
    steps: Annotated[str, typer.Option(help="Steps to draw, such as 3,17 [first, slowest, longest ring, last].")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as one JSON object; write a page only with --output.")
    ] = False,
) -> None:
    """Write one self-contained HTML page about a run: curves, mix, steps planned and measured, events."""
    try:
        folder, wanted = _resolve(directory), _numbers(steps)
        if as_json:
            typer.echo(json.dumps(facts(read_run(folder, wanted))))
        if output is not None or not as_json:
            typer.echo(write_report(folder, output, wanted), err=as_json)
    except (Refused, OSError) as error:
        typer.echo(f"cox report: {error}", err=True)
        raise typer.Exit(2) from error


def _resolve(directory: Path) -> Path:
    """A job's name stands for its default work directory."""
    by_name = Path("runs") / directory
    return by_name if not directory.exists() and by_name.is_dir() else directory


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise Refused("BadSteps", f"--steps {text!r}: give step numbers with commas, such as 3,17") from error
