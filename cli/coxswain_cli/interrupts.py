"""Requests to stop: signals, and a standard output that nothing reads any more."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TextIO

import typer


class Interrupts:
    """Counts requests to stop instead of ending on the first.

    Until `counting` is set there is nothing to save: the first request raises KeyboardInterrupt.
    A lost terminal (SIGHUP, often twice, and a failed write) is one request and never the second.
    SIGHUP stays ignored where it was (`nohup`).
    """

    def __init__(self) -> None:
        self.count, self.counting = 0, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_signal)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def request(self) -> None:
        """Counts one request. Raises KeyboardInterrupt where nothing counts yet."""
        self.count += 1
        if not self.counting:
            raise KeyboardInterrupt

    def hang_up(self) -> None:
        """Requests a stop, unless one was requested."""
        if not self.count:
            self.request()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hang_up()
        else:
            self.request()


class SteadyStream:
    """A text stream that outlives its reader.

    The first error of a write requests a stop; what follows goes nowhere.
    """

    def __init__(self, stream: TextIO, interrupts: Interrupts) -> None:
        self._stream, self._interrupts = stream, interrupts

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        discard(self._stream)
        complain(f"cox run: standard output cannot be written ({error.strerror}); this is taken as Ctrl-C")
        self._interrupts.hang_up()

    def __getattr__(self, name: str) -> Any:
        """All else (`isatty`, `encoding`, `fileno`) is the stream's."""
        return getattr(self._stream, name)


def discard(stream: TextIO) -> None:
    """Sends what the stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain(message: str) -> None:
    """Prints on standard error, if that can be written."""
    with suppress(OSError):
        typer.echo(message, err=True)
