"""`cox report`: one HTML page about a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coxswain.errors import Refused
from coxswain_cli.readers.choose import Context, Job, Kubeconfig, Namespace, reader_of, refusals
from coxswain_cli.readers.values import JobReader
from coxswain_cli.replacing import is_plain, write_whole
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.reporting.model import RecordedRun
from coxswain_cli.reporting.page import page


def write_report(reader: JobReader, output: Path | None = None, steps: tuple[int, ...] = ()) -> Path:
    """Writes the report of a run and returns its path: by default where the reader says.

    Raises Refused when there is no run, or nothing is recorded of a requested step.
    """
    return _write_page(reader.record(steps), reader.report_path if output is None else output)


def _write_page(run: RecordedRun, target: Path) -> Path:
    if not target.name:
        raise Refused("BadOutput", f"--output {str(target)!r} names no file; give the path of a file to write")
    text = page(run)
    try:
        write_whole(target, text)
    except BrokenPipeError:  # a reader that has seen enough needs no words
        raise
    except OSError as error:
        way_out = "give --output the path of a file that can be"
        raise Refused("BadOutput", f"{target} cannot be written ({error.strerror}); {way_out}") from error
    return target


def report_command(
    job: Job,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write [WORKDIR/report.html, else JOB-report.html].")
    ] = None,
    steps: Annotated[str, typer.Option(help="Steps to draw, such as 3,17 [first, slowest, longest ring, last].")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as one JSON object; write a page only with --output.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: Namespace = "",
) -> None:
    """Write one self-contained HTML page about a run: curves, mix, steps planned and measured, events."""
    with refusals("report"):
        reader = reader_of(job, kubeconfig, context, namespace)
        run = reader.record(_numbers(steps))
        if as_json:
            typer.echo(json.dumps(facts(run)))
        if output is not None or not as_json:
            for note in run.notes:
                typer.echo(f"cox report: {note}", err=True)
            written = _write_page(run, output or reader.report_path)
            typer.echo(written, err=as_json or not is_plain(written))  # a link may lead to standard output


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise Refused("BadSteps", f"--steps {text!r}: give step numbers with commas, such as 3,17") from error
