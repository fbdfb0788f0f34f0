"""What a run on this machine needs of it: room on the disk, and the ports of its services."""

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
_BYSTANDER = "127.0.0.2"  # no pod's address: only who listens on every address is in the way here


def check_room(folder: Path) -> None:
    """Raises OSError when the disk is full: reconcile would try again for ever, and its log could not say so."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_ports() -> None:
    """Raises Refused when something listens on every address at one of our ports: no pod could have it, too."""
    taken = [port for port in _PORTS if _is_taken(port)]
    if taken:
        raise Refused(
            "PortsTaken",
            f"something on this machine listens on every address at port {', '.join(map(str, taken))}, which the services of a "
            f"run need on their own; end it (`ss -ltnp sport = :{taken[0]}` names it), or let it listen on one address",
        )


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_BYSTANDER, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
