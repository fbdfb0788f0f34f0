"""An address for every pod host name, from 127.64.0.0/10, so that container ports stay what they
are.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import zlib

from coxswain.errors import Refused

_BASE = 127 << 24 | 64 << 16
_COUNT = 1 << 22
_GUARD_PORT = 7399  # UDP, which no service uses


class Addresses:
    """Holds each address by a bound guard socket: a run that cannot bind it takes the next one.

    So two runs never collide. A host name keeps its address while the cluster is open, which stands
    in for DNS.
    """

    def __init__(self, seed: str) -> None:
        if sys.platform != "linux":
            raise Refused(
                "LinuxOnly", f"the local cluster needs Linux's loopback network 127.0.0.0/8; this is {sys.platform}"
            )
        self._next = zlib.crc32(os.fsencode(f"{seed} {os.getpid()}")) % _COUNT
        self._held: dict[str, tuple[str, socket.socket]] = {}

    def of(self, host: str) -> str:
        if host not in self._held:
            self._held[host] = self._claim()
        return self._held[host][0]

    def guard(self, host: str) -> int:
        """The guard's file descriptor: a process that inherits it holds the address until it ends."""
        return self._held[host][1].fileno()

    def close(self) -> None:
        for _, guard in self._held.values():
            guard.close()
        self._held.clear()

    def _claim(self) -> tuple[str, socket.socket]:
        for _ in range(1000):
            self._next = (self._next + 1) % _COUNT
            address = socket.inet_ntoa((_BASE + self._next).to_bytes(4, "big"))
            if not address.endswith((".0", ".255")) and (guard := _bind(address)) is not None:
                return address, guard
        raise Refused("NoAddress", "no free address in 127.64.0.0/10; end other local runs (cox run)")


def _bind(address: str) -> socket.socket | None:
    try:
        guard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise Refused("NoAddress", f"no socket for {address} ({error.strerror}); raise `ulimit -n`") from error
    try:
        guard.bind((address, _GUARD_PORT))
    except OSError as error:
        guard.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise Refused(
            "NoAddress", f"cannot bind {address} ({error.strerror}); the loopback network must be up"
        ) from error
    return guard
