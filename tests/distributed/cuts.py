"""Worlds of threads that break: a rank's n-th message, sent or received, is its last.

What a rank sent before reaches the others, then each of them fails where it waits for more. So how far every rank comes
follows from the place of the cut alone, however threads are scheduled.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tests.distributed.threads import Mail, ThreadWorld

Box = queue.Queue[Tensor | None]


class Broken(RuntimeError):
    """As torch raises when a peer is gone."""


@dataclass
class Post:
    """Queues between ranks, each of which may have ended."""

    boxes: dict[tuple[int, int, int], Box] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def box(self, sender: int, receiver: int, lane: int) -> Box:
        with self.lock:
            key = sender, receiver, lane
            if key not in self.boxes:
                self.boxes[key] = queue.Queue()
                if sender in self.ended:
                    self.boxes[key].put(None)
            return self.boxes[key]

    def end(self, rank: int) -> None:
        with self.lock:
            self.ended.add(rank)
            for (sender, _, _), box in self.boxes.items():
                if sender == rank:
                    box.put(None)


class RankMail(Mail):
    """One rank's way to the post. `last`: of its messages; None: there is none. `change` may alter what it sends."""

    def __init__(self, post: Post, rank: int, last: int | None, change: Callable[[int, Tensor], Tensor] | None) -> None:
        self._post, self._rank, self._last, self._change, self.count = post, rank, last, change, 0

    def _next(self) -> None:
        if self._last is not None and self.count >= self._last:
            raise Broken(f"rank {self._rank} is cut off after {self._last} messages")
        self.count += 1

    def send(self, sender: int, receiver: int, tensor: Tensor, lane: int = -1) -> None:
        self._next()
        sent = tensor.detach().clone()
        self._post.box(sender, receiver, lane).put(self._change(lane, sent) if self._change else sent)

    def receive(self, sender: int, receiver: int, lane: int = -1) -> Tensor:
        self._next()
        found = self._post.box(sender, receiver, lane).get(timeout=60)
        if found is None:
            raise Broken(f"rank {sender} is gone")
        return found


@dataclass
class Outcome:
    """What became of a rank: its result or the error that ended it, and its messages."""

    result: Any = None
    error: Exception | None = None
    messages: int = 0


def run_cut(
    n: int, fn: Callable[..., Any], *args: Any, cuts: Sequence[tuple[int, int]] = (),
    change: Callable[[int, Tensor], Tensor] | None = None,
) -> list[Outcome]:  # fmt: skip
    """As `run_threads`. `cuts`: ranks, and the number of messages after which each is cut off."""
    post, lasts = Post(), dict(cuts)

    def run(rank: int) -> Outcome:
        mail, outcome = RankMail(post, rank, lasts.get(rank), change), Outcome()
        try:
            outcome.result = fn(ThreadWorld(mail, rank, n), *args)
        except Exception as error:
            outcome.error = error
        post.end(rank)
        outcome.messages = mail.count
        return outcome

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(run, range(n)))
