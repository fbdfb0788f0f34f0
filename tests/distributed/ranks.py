"""`run_ranks(n, fn)`: runs a function on n ranks joined in one world. Processes are kept between tests.

Importing torch costs seconds, so one fork server imports it for all ranks. The pool grows to the largest world asked for
and is thrown away only when a rank fails or the deadline passes. The fork server ends with this process, also at a kill.
"""

from __future__ import annotations

import atexit
import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_forkserver = multiprocessing.get_context("forkserver")
# A backward that is given a gradient imports the second one, which takes a rank seconds.
_forkserver.set_forkserver_preload(
    ["torch", "torch.fx.experimental.symbolic_shapes", "coxswain_train.parallel.process_groups"]
)


class RankFailed(AssertionError):
    """A rank raised; the message holds its traceback."""


class Pool:
    """Idle processes, each at the other end of a pipe."""

    def __init__(self) -> None:
        self._members: list[tuple[BaseProcess, Connection]] = []

    def run(self, n: int, fn: Callable[..., Any], args: tuple[Any, ...], deadline: float) -> list[Any]:
        while len(self._members) < n:
            self._members.append(_start())
        pipes = [pipe for _, pipe in self._members[:n]]
        with TemporaryDirectory() as folder:
            try:
                for rank, pipe in enumerate(pipes):
                    pipe.send((str(Path(folder) / "store"), rank, n, fn, args))
                return _collect(pipes, time.monotonic() + deadline)
            except BaseException:
                self.close()  # the others may be waiting for the one that failed
                raise

    def close(self) -> None:
        for process, pipe in self._members:
            process.kill()
            process.join()
            pipe.close()
        self._members = []


_pool = Pool()
atexit.register(_pool.close)


def run_ranks(n: int, fn: Callable[..., Any], *args: Any, deadline: float = 180.0) -> list[Any]:
    """Results of `fn(world, *args)` by rank; `fn` is a function of a module. Raises RankFailed or TimeoutError."""
    return _pool.run(n, fn, args, deadline)


def _start() -> tuple[BaseProcess, Connection]:
    ours, theirs = _forkserver.Pipe()
    process = _forkserver.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _collect(pipes: list[Connection], end: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = multiprocessing.connection.wait(waiting, timeout=max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {[r for r in range(len(pipes)) if r not in results]} did not end in time")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            ok, results[rank] = _receive(pipe, rank)  # type: ignore[arg-type]
            if not ok:
                raise RankFailed(f"rank {rank}:\n{results[rank]}")
    return [results[rank] for rank in range(len(pipes))]


def _receive(pipe: Connection, rank: int) -> tuple[bool, Any]:
    try:
        ok, value = pipe.recv()
    except EOFError:
        return False, f"rank {rank}'s process exited"
    return ok, value


def _serve(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from coxswain_link.environment import end_with_parent
    from coxswain_train.parallel.process_groups import ProcessGroups, leave_world

    end_with_parent()
    torch.set_num_threads(1)
    while True:
        store, rank, ranks, fn, args = pipe.recv()
        try:
            world = ProcessGroups(dist.FileStore(store, ranks), rank, ranks, torch.device("cpu"))
            reply = (True, fn(world, *args))
        except BaseException:
            reply = (False, traceback.format_exc())
        leave_world()
        pipe.send(reply)
