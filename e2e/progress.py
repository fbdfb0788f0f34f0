"""Progress of a long command: a line for each part, and while it runs what it has taken so far."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coxswain_cli.progress import amount, duration

_EVERY = 15.0  # seconds between two lines about one part


@dataclass
class Progress:
    """`used`: bytes of disk that the work has taken so far. `most`: the most that were seen."""

    parts: int
    used: Callable[[], int]
    say: Callable[[str], object] = lambda line: print(line, flush=True)
    now: Callable[[], float] = time.monotonic
    every: float = _EVERY
    most: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Says that a part begins, each `every` seconds what it has taken, and that it is done."""
        self._number += 1
        self.say(f"[{self._number}/{self.parts}] {what}")
        began, before, done = self.now(), self._look(), threading.Event()

        def taken(end: str) -> None:
            self.say(f"    {end}{spent(self.now() - began, self._look() - before)}")

        def watch() -> None:
            while not done.wait(self.every):
                taken("… ")

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
        taken("")

    def _look(self) -> int:
        used = self.used()
        self.most = max(self.most, used)
        return used


def disk(*folders: Path) -> int:
    """Bytes that the folders take. Files that go while they are counted are no error."""
    command: list[str | Path] = ["du", "--summarize", "--one-file-system", "--total", "--block-size=1", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.splitlines()[-1].split()[0])


def spent(seconds: float, taken: int) -> str:
    """Time, and bytes of disk: `40 s, 1.20 GB of disk`; what was given back is nothing."""
    size = amount(max(taken, 0))
    return f"{duration(seconds)}, {size}{'' if size[-1].isalpha() else ' '}B of disk"
