"""`cox logs`: what the processes of a job have written."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coxswain.errors import Refused
from coxswain_cli.readers.choose import Context, JobWithPods, Kubeconfig, Namespace, reader_of, refusals


def logs_command(
    job: JobWithPods,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the processes end.")] = False,
    trainer: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only trainer N.")] = None,
    loader: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only loader N.")] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="Only the coordinator.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: Namespace = "",
) -> None:
    """Show the logs of a job's current pods, each line behind the name of its pod and container."""
    with refusals("logs"):
        member = _member(trainer, loader, coordinator)
        reader_of(job, kubeconfig, context, namespace).logs(member, follow, _write)


def _member(trainer: int | None, loader: int | None, coordinator: bool) -> str:
    """Empty: all. Raises Refused for more than one."""
    chosen = [
        *([] if trainer is None else [f"trainer-{trainer}"]),
        *([] if loader is None else [f"loader-{loader}"]),
        *(["coordinator"] if coordinator else []),
    ]
    if len(chosen) > 1:
        raise Refused("TwoMembers", "give one of --trainer N, --loader N and --coordinator, or none for all")
    return chosen[0] if chosen else ""


def _write(origin: str, line: bytes) -> None:
    sys.stdout.write(f"[{origin}] {line.decode(errors='backslashreplace')}")
    sys.stdout.flush()
