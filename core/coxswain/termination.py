"""Termination messages. A kubelet keeps the last 4,096 bytes of a container's: of a longer one nothing can be decoded."""

from __future__ import annotations

from bisect import bisect_right

import msgspec
from msgspec.structs import replace

from coxswain.wire import Fault

TERMINATION_BYTES = 4096


def fitting(fault: Fault, room: int = TERMINATION_BYTES) -> Fault:
    """The fault with as much of its message, from the front, as `room` bytes of JSON hold."""
    if len(msgspec.json.encode(fault)) <= room:
        return fault
    cut = bisect_right(range(len(fault.message)), room, key=lambda n: len(msgspec.json.encode(_first(fault, n))))
    return _first(fault, max(cut - 1, 0))


def _first(fault: Fault, characters: int) -> Fault:
    return replace(fault, message=f"{fault.message[:characters]}…")
