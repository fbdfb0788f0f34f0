"""The process that outlives a cluster's owner: it holds the cluster's namespaces open and removes
everything afterwards.

    python -m e2e.cluster.reaper STATE NODES owned|detached

It prints `ready` once the namespaces are there. It ends when its standard input closes (`owned`:
the owner is gone), on SIGTERM, or when the namespaces' first process ends. If it is killed itself,
that process ends with it; files and cgroups then stay until the next sweep.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from e2e.cluster.namespaces import UNSHARE, first_process, identify, run
from e2e.cluster.plan import NoRangeFree, Plan, make_plan
from e2e.cluster.process import Child, binary
from e2e.cluster.state import ClusterRuns, NotOurs, State


def routes() -> list[str]:
    """Where this machine's routes lead."""
    found: list[dict[str, object]] = msgspec.json.decode(run(["ip", "-json", "-4", "route"]))
    return [str(route["dst"]) for route in found]


@contextmanager
def namespaces(state: State, plan: Plan) -> Iterator[int]:
    """The id of their first process."""
    child = Child([*UNSHARE, binary("pause")], state.logs / "namespaces.log")
    try:
        child.wait_until(lambda: first_process(child.process.pid) is not None)
        pid = first_process(child.process.pid)
        assert pid is not None
        identify(pid).write(state.first_file)
        yield pid
    finally:
        child.stop()


def wait_for_reason(first: int, owned: bool) -> None:
    """Returns when the owner is gone, a signal arrives, or the cluster's first process has ended."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    watched = [reader, os.pidfd_open(first), *([sys.stdin.fileno()] if owned else [])]
    select.select(watched, [], [])


def speak_to(log: Path) -> None:
    """Writes its output to the log and releases the owner's pipe or terminal."""
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)


def keep(state: State, nodes: int, owned: bool) -> None:
    """A cluster's namespaces, from nothing to nothing."""
    lock = state.take()
    try:
        state.sweep()
        plan = make_plan(state.root, nodes, routes())
        state.logs.mkdir()
        state.write_plan(plan)
        identify(os.getpid()).write(state.reaper_file)
        with namespaces(state, plan) as first:
            print("ready", flush=True)
            speak_to(state.logs / "reaper.log")
            wait_for_reason(first, owned)
    finally:
        state.remove()
        lock.close()


def main(arguments: list[str]) -> int:
    state, nodes, owned = State(Path(arguments[0])), int(arguments[1]), arguments[2] == "owned"
    try:
        keep(state, nodes, owned)
    except (ClusterRuns, NotOurs, NoRangeFree) as error:
        print(error, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
