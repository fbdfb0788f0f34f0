"""Limits of this process (`ulimit`) that every process of a run has too: raised as far as they may be, else refused by name.

With too few of them services fail in ways that name no limit, and start again and again.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coxswain.errors import Refused

Manifest = dict[str, Any]
Pair = tuple[int, int]  # soft and hard limit

# As measured of the process with the most files: the coordinator, or a worker, which knows all others.
_FILES, _FILES_EACH = 24, 6
_TASKS, _TASKS_EACH = 32, 24  # processes and threads
_SPARE = 4  # times as much as is needed, where a soft limit is raised
_ADDRESSES = 3 << 30  # bytes: importing torch reserves that much


@dataclass(frozen=True, slots=True)
class Need:
    """`unit`: of the number that `ulimit` takes, in the limit's own."""

    number: int
    option: str
    what: str
    least: int
    unit: int = 1


def needs(job: Manifest, root: bool) -> Iterator[Need]:
    """What no run of the job goes without; a limit of a user's processes does not bind root."""
    size = job["spec"].get("trainers") or {}
    trainers = int(size.get("count", 1))
    devices = trainers * int(size.get("devicesPerTrainer", 1))
    yield Need(resource.RLIMIT_NOFILE, "-n", "open files", _FILES + _FILES_EACH * devices)
    yield Need(resource.RLIMIT_AS, "-v", "kilobytes of addresses", _ADDRESSES, 1024)
    if not root:
        yield Need(resource.RLIMIT_NPROC, "-u", "processes and threads", _TASKS + _TASKS_EACH * trainers)


def enough(limits: Pair, least: int) -> int | None:
    """The soft limit that the run gets: as it is, or with some to spare. None: the hard one allows too little."""
    soft, hard = limits
    if _reaches(soft, least):
        return soft
    if not _reaches(hard, least):
        return None
    return _SPARE * least if hard == resource.RLIM_INFINITY else min(hard, _SPARE * least)


def _reaches(limit: int, least: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= least


def raise_limit(
    number: int,
    least: int,
    read: Callable[[int], Pair] = resource.getrlimit,
    write: Callable[[int, Pair], None] = resource.setrlimit,
) -> int | None:
    """Raises a soft limit that is too low. Returns the hard one where that is too low as well, else None."""
    soft, hard = read(number)
    wanted = enough((soft, hard), least)
    if wanted is None:
        return hard
    if wanted != soft:
        write(number, (wanted, hard))
    return None


def check_limits(
    job: Manifest,
    read: Callable[[int], Pair] = resource.getrlimit,
    write: Callable[[int, Pair], None] = resource.setrlimit,
) -> None:
    """Raises the soft limits that are too low. Raises Refused, naming every limit that cannot be raised enough."""
    judged = [(need, raise_limit(need.number, need.least, read, write)) for need in needs(job, os.geteuid() == 0)]
    lacking = [_describe(need, hard) for need, hard in judged if hard is not None]
    if lacking:
        raise Refused("LimitTooLow", "; ".join(lacking))


def _describe(need: Need, hard: int) -> str:
    found, least, option = hard // need.unit, need.least // need.unit, f"ulimit {need.option}"
    return f"`{option}` is {found} {need.what}, and this run needs at least {least}: raise it, as by `{option} {least}` as root"
