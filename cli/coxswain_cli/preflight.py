"""Checks what a run needs of this machine: room on the disk, and the ports of its services."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from coxswain import names
from coxswain.errors import Refused

_LEAST_ROOM = 64 << 10  # bytes: with less, the next writes of status and logs fail
_PORTS = (
    names.PORT_COORDINATOR, names.PORT_LOADER, names.PORT_LOADER_HTTP, names.PORT_CONSTRUCTOR_HTTP, names.PORT_AGENT_HTTP,
)  # fmt: skip
_BYSTANDER = "127.0.0.2"  # no pod's address: only a listener on every address occupies it


def check_room(folder: Path) -> None:
    """Raises OSError when the disk is full: reconcile would retry without end and could not log it."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


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
