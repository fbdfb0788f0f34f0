"""Which reader a command line means, and how its errors are said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coxswain.errors import CoxswainError, Refused
from coxswain.exits import Exit
from coxswain_cli.readers.folder import folder_reader
from coxswain_cli.readers.location import LocationReader
from coxswain_cli.readers.stored_run import is_location
from coxswain_cli.readers.values import JobReader

FAILED = 1


def named(context: typer.Context, parameter: typer.CallbackParam, name: str) -> str:
    """An empty text, as of a shell's variable that is not set, would mean this machine, or the current folder."""
    source = context.get_parameter_source(str(parameter.name))
    if not name and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(f"it is empty; give a name{'' if parameter.required else ', or leave it out'}")
    return name


Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        callback=named,
        help="A work directory, a job below runs/, a checkpoint.uri, or a job of a cluster.",
    ),
]
JobWithPods = Annotated[
    str,
    typer.Argument(metavar="JOB", callback=named, help="A work directory, a job below runs/, or a job of a cluster."),
]
Kubeconfig = Annotated[Path | None, typer.Option("--kubeconfig", help="Read the job in this file's cluster.")]
Context = Annotated[str, typer.Option("--context", callback=named, help="Read the job in the cluster of this context.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", callback=named, help="Read the job in this namespace of a cluster.")
]


def reader_of(job: str, kubeconfig: Path | None, context: str, namespace: str) -> JobReader:
    """Raises Refused, also for a place that is named twice."""
    in_cluster = bool(kubeconfig or context or namespace)
    if is_location(job):
        if in_cluster:
            raise Refused(
                "TwoPlaces", f"{job} is a checkpoint location: leave --kubeconfig, --context and --namespace out"
            )
        return LocationReader(job)
    if in_cluster:
        from coxswain_cli.readers.cluster import Place, cluster_reader  # imports an HTTP client

        return cluster_reader(Place(kubeconfig, context, namespace), job)
    return folder_reader(job)


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Ends the command with one line: exit code 2 for what the user can mend, 1 for what may pass."""
    try:
        yield
    except CoxswainError as error:
        typer.echo(f"cox {command}: {' '.join(str(error).splitlines())}", err=True)
        raise typer.Exit(Exit.USER_FAULT if isinstance(error, Refused) else FAILED) from error
    except OSError as error:
        if error.filename is None:  # standard output, which `cox` names for every command
            raise
        way_out = "repair that, or repeat this as the user that ran the job"
        typer.echo(f"cox {command}: {error.filename}: {error.strerror}; {way_out}", err=True)
        raise typer.Exit(Exit.USER_FAULT) from error
