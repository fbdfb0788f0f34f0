"""`cox validate FILE…`: reports every fault of the files at once; exit code 0 or 2."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from coxswain.api.field_errors import FieldError, printable
from coxswain.api.load import Document, load_documents
from coxswain.api.memory_faults import memory_note
from coxswain.api.resolve import resolve
from coxswain.api.validate import missing, validate
from coxswain.config import JobConfig
from coxswain.exits import Exit
from coxswain_operator.children import PodPlan
from coxswain_operator.settings import Settings

_OTHERS = ("DataSource", "DataMix", "ParallelismPolicy")


def validate_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="YAML files with TrainingJobs, mixes, sources, policies; -: standard input."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the faults as a JSON array.")] = False,
) -> None:
    """Check files offline and print every fault with its fix. Exit code 0, or 2 with faults."""
    documents, faults = load_documents(files)
    faults += _empty_files(files, documents, faults)
    faults = sorted([*faults, *validate(documents)], key=lambda fault: (fault.file, fault.document))
    if as_json:
        print(json.dumps([asdict(fault) for fault in faults], indent=2))
    elif faults:
        print_faults(faults)
    else:
        print(f"{_count(len(documents), 'object')} in {_count(len(files), 'file')}: no faults")
        for absent in missing(documents):
            print(f"note: {absent.text}")
        for _, job in resolved_jobs(documents):
            if note := memory_note(job):
                print(f"note: TrainingJob {job.name}: predicted memory: {note}")
        for fault in beyond_restricted(documents):
            print(f"note: {fault.text}; a cluster that admits it takes the job")
    raise typer.Exit(Exit.USER_FAULT if faults else Exit.DONE)


def resolved_jobs(documents: Sequence[Document]) -> Iterator[tuple[dict[str, Any], JobConfig]]:
    """The jobs whose other objects are in the files: as manifests, and resolved."""
    for job in (d for d in documents if d.identity[0] == "TrainingJob"):
        others = [[d.manifest for d in documents if d.identity[:2] == (kind, job.identity[1])] for kind in _OTHERS]
        whole = {**job.manifest, "metadata": {"uid": "", **job.manifest["metadata"], "namespace": job.identity[1]}}
        config = resolve(whole, others[0], others[1], others[2], uid="")
        if isinstance(config, JobConfig):
            yield whole, config


def beyond_restricted(documents: Sequence[Document]) -> list[FieldError]:
    """What a cluster refuses by default in the templates of these jobs."""
    plans = (PodPlan(whole, config, Settings(), attempt=0, start=0) for whole, config in resolved_jobs(documents))
    return [fault for plan in plans for fault in plan.template_faults("")]


def _empty_files(files: list[Path], documents: list[Document], faults: list[FieldError]) -> list[FieldError]:
    used = {d.file for d in documents} | {f.file for f in faults}
    way_out = "name files with at least one object"
    return [FieldError("", "holds no object", way_out=way_out, file=str(f)) for f in files if str(f) not in used]


def print_faults(faults: Sequence[FieldError], console: Console | None = None) -> None:
    """Prints the faults grouped by document on standard error; without colour off a terminal."""
    console = console or Console(stderr=True, soft_wrap=True, highlight=False)
    for (file, document), group in groupby(faults, key=lambda fault: (fault.file, fault.document)):
        place = f"{file}, document {document}" if document else file
        console.print(Text(place, style="bold"))
        for fault in group:
            console.print(_line(fault))
    console.print(_count(len(faults), "fault"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(fault: FieldError) -> Text:
    line = Text("  ")
    if fault.path:
        line.append(f"{printable(fault.path)}: ", style="cyan")
    line.append(printable(fault.message), style="red")
    line.append(printable(f" (allowed: {fault.allowed})") if fault.allowed else "")
    line.append(printable(f"; {fault.way_out}") if fault.way_out else "", style="green")
    return line
