"""Checks what a run needs of its files and of this machine: room on the disk, ports, a folder of checkpoints of its own."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coxswain import names
from coxswain.errors import Refused
from coxswain.uris import file_path, is_file

log = logging.getLogger(__name__)

_LEAST_ROOM = 64 << 10  # bytes: with less, the next writes of status and logs fail
_PORTS = (
    names.PORT_COORDINATOR, names.PORT_LOADER, names.PORT_LOADER_HTTP, names.PORT_CONSTRUCTOR_HTTP, names.PORT_AGENT_HTTP,
)  # fmt: skip
Manifest = dict[str, Any]

_BYSTANDER = "127.0.0.2"  # no pod's address: only a listener on every address occupies it


def check_room(folder: Path) -> None:
    """Raises OSError when the disk is full: reconcile would retry without end and could not log it.

    A file system that states no size says nothing of its room, either.
    """
    disk = os.statvfs(folder)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_volumes(objects: list[Manifest]) -> None:
    """Raises Refused, naming every uri of a volume that only a Kubernetes cluster has."""
    found = [
        f"{o['kind']} {o['metadata']['name']}: {path}: {uri}: `cox run` has no volumes of Kubernetes; use file:///folder "
        "or s3://bucket/prefix"
        for o in objects
        for path, uri in _uris(o.get("spec"), "spec")
        if uri.startswith("pvc://")
    ]
    if found:
        raise Refused("NeedsKubernetes", "\n".join(["refused", *(f"  {line}" for line in found)]))


def check_secrets(objects: list[Manifest]) -> None:
    """Raises Refused, naming every Secret of an endpoint that no file has: here nothing brings it later."""
    there = {o["metadata"]["name"] for o in objects if o["kind"] == "Secret"}
    endpoints = [
        (o, path, spec["endpoint"]["secretRef"]["name"])
        for o in objects
        for path, spec in (("spec", o.get("spec")), ("spec.checkpoint", (o.get("spec") or {}).get("checkpoint")))
        if spec and (spec.get("endpoint") or {}).get("secretRef")
    ]
    found = [
        f"  {o['kind']} {o['metadata']['name']}: {path}.endpoint.secretRef.name: no file holds Secret {name!r}; add it to "
        "the files, or remove secretRef to use this machine's credentials"
        for o, path, name in endpoints
        if name not in there
    ]
    if found:
        raise Refused("SecretMissing", "\n".join(["refused", *found]))


def check_stops(job: Manifest) -> None:
    """Raises Refused for a file that asks for a stop: each repetition would train nothing, and end well.

    A stop that the user asks for meanwhile is in the stored job alone.
    """
    name = f"TrainingJob {job['metadata']['name']}"
    if job["spec"].get("suspend"):
        way_out = "take it out, or give --set spec.suspend=false"
        raise Refused(
            "StoppedByFile", f"{name}: spec.suspend: true: `cox run` trains nothing of a suspended job; {way_out}"
        )
    if names.ANNOTATION_STOP_AT in (job["metadata"].get("annotations") or {}):
        said = f"metadata.annotations: {names.ANNOTATION_STOP_AT} is set by `cox run --until-step N`"
        raise Refused("StoppedByFile", f"{name}: {said}; take it out, and give that option")


def _uris(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every uri below a value, with its path."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        place = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}"
        if name == "uri" and isinstance(member, str):
            yield place, member
        else:
            yield from _uris(member, place)


@contextmanager
def lock_checkpoints(job: Manifest) -> Iterator[None]:
    """Holds the job's folder of checkpoints on this machine. Raises Refused while another run holds it."""
    uri: str = job["spec"]["checkpoint"]["uri"]
    if not is_file(uri):
        yield
        return
    folder = _opened(uri)
    try:
        _lock(folder, uri)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, uri: str) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"checkpoint.uri {uri} is in use by another run on this machine; wait for it, or choose another"
        raise Refused("CheckpointInUse", message) from error
    except OSError as error:  # the claim of the coordinator is left
        log.info("%s cannot be locked (%s): its file system has no locks", uri, error.strerror)


def _opened(uri: str) -> int:
    try:
        file_path(uri).mkdir(parents=True, exist_ok=True)
        return os.open(file_path(uri), os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError) as error:  # no path has a NUL
        way_out = "give this user the right to write there, or choose another"
        why = getattr(error, "strerror", error)
        raise Refused("CheckpointUnusable", f"checkpoint.uri {uri}: {why}; {way_out}") from error


def check_loopback() -> None:
    """Raises Refused while no process here can reach another, as in a new network namespace. Addresses can be bound there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_BYSTANDER, names.PORT_COORDINATOR))  # sends nothing: asks for the route
        except OSError as error:
            message = f"the loopback network, by which the services of a run talk, is down ({error.strerror})"
            raise Refused("NoLoopback", f"{message}; bring it up: `ip link set lo up`") from error


def check_ports() -> None:
    """Raises Refused when a process listens on every address at a port that pods need."""
    taken = [port for port in _PORTS if _is_taken(port)]
    if taken:
        raise Refused(
            "PortsTaken",
            f"a process on this machine listens on every address at port {', '.join(map(str, taken))}, which the "
            f"services of a run need; end it (`ss -ltnp sport = :{taken[0]}` names it), or let it listen on one address",
        )


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_BYSTANDER, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
