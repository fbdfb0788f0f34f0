"""The ranks of one system as processes: started together, measured while they wait, ended whatever happens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.loading import sessions
from bench.loading.corpus import Corpus
from bench.loading.environments import python_of
from bench.recorded import ROOT

DEADLINE = 900.0  # seconds of one run
LEAVE = 20.0  # seconds for the ranks to end by themselves
_LAST = 2000  # characters of a rank's errors that are shown
DOCUMENTS, TOKENS = 8, 4096  # in a batch of one rank


@dataclass(frozen=True, slots=True)
class Place:
    """A system, what it reads, and where it keeps its own form of that."""

    system: str
    corpus: Corpus
    folder: Path

    def command(self, *more: object) -> list[str]:
        # -W ignore: peers warn about each other
        start = (python_of(self.system), "-W", "ignore", "-m", "bench.loading.rank", self.system)
        return [*map(str, (*start, self.corpus.folder, self.folder, *more))]


@dataclass(frozen=True, slots=True)
class Shape:
    """So many ranks, each with processes that read; documents and tokens in a batch of one rank, and how many batches."""

    ranks: int
    workers: int
    batches: int
    documents: int = DOCUMENTS
    tokens: int = TOKENS

    def options(self, rank: int) -> list[object]:
        named = {
            "rank": rank, "world": self.ranks, "workers": self.workers, "batches": self.batches,
            "documents": self.documents, "tokens": self.tokens,
        }  # fmt: skip
        return [part for name, value in named.items() for part in (f"--{name}", value)]


class Ranks:
    """Started on entry; on exit they may end by themselves for a while, then all processes of their sessions are killed."""

    def __init__(self, place: Place, shape: Shape, *more: object) -> None:
        self._commands = [place.command(*shape.options(rank), *more) for rank in range(shape.ranks)]
        self._stack = ExitStack()
        self._said = [self._stack.enter_context(tempfile.TemporaryFile("w+")) for _ in self._commands]  # noqa: SIM115
        self._ranks: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Ranks:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for command, said in zip(self._commands, self._said, strict=True):
            self._ranks.append(self._stack.enter_context(_start(command, port, said)))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.go_on()
            sessions.ended(self.sessions, LEAVE)
        sessions.end(self.sessions)
        self._stack.close()

    @property
    def sessions(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def until(self, event: str, on_other: Callable[[int, dict[str, Any]], None] | None = None) -> list[dict[str, Any]]:
        """What each rank says at this event, where it then waits. Raises RuntimeError when one has ended."""
        return [self._until(number, event, on_other) for number in range(len(self._ranks))]

    def go_on(self) -> None:
        for rank in self._ranks:
            with suppress(BrokenPipeError):  # it has ended
                os.write(
                    rank.stdin.fileno(), b"\n"
                )  # past Python's buffer, which would be written again when it closes

    def _until(self, number: int, event: str, on_other: Callable[[int, dict[str, Any]], None] | None) -> dict[str, Any]:
        for line in self._ranks[number].stdout:
            if not line.startswith('{"event"'):  # a peer's own words
                continue
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event:
                return said
            if on_other is not None:
                on_other(number, said)
        self._said[number].seek(0)
        raise RuntimeError(f"rank {number} ended before {event!r}: {self._said[number].read()[-_LAST:]}")


def _start(command: list[str], port: int, errors: IO[str]) -> subprocess.Popen[str]:
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    limited = ["timeout", "--kill-after=5", str(int(DEADLINE)), *command]
    return subprocess.Popen(
        limited, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        text=True, start_new_session=True,
    )  # fmt: skip
