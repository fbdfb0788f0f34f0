"""Requests to stop: signals, and a standard output that nothing reads any more."""

from __future__ import annotations

import os
import select
import signal
import stat
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TextIO

import typer

from coxswain_cli.replacing import signals_wait

_LOOK = 0.1  # seconds between two looks for a request to stop


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
    """A text stream that outlives its reader and waits for none. Use as `with`.

    A run must go on while `less` shows a page or a terminal is halted: what the reader does not take yet is kept, and
    written by a later `flush`. Leaving waits for the reader, unless a stop was requested twice, or until one is requested.
    The first error of a write requests a stop; what follows goes nowhere.
    """

    def __init__(self, stream: TextIO, interrupts: Interrupts) -> None:
        self._stream, self._interrupts = stream, interrupts
        self._waiting, self._is_file = bytearray(), _is_file(stream)
        self._own = _own_descriptor(stream) if self._is_file else -1

    def __enter__(self) -> SteadyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        requests = self._interrupts.count
        while self._waiting and requests < 2 and self._interrupts.count == requests:
            self._push(_LOOK)
        self._close()

    @property
    def is_behind(self) -> bool:
        """Whether the reader has not taken all yet."""
        return bool(self._waiting)

    def write(self, text: str) -> int:
        if not self._is_file:
            return self._stream.write(text)
        self._waiting += text.encode(self._stream.encoding, self._stream.errors or "strict")
        return len(text)

    def flush(self) -> None:
        self._push(0.0)

    def _push(self, seconds: float) -> None:
        """Writes what the reader takes within so many seconds."""
        to = self._own if self._own >= 0 else self._stream.fileno()
        try:
            while self._waiting and select.select((), (to,), (), seconds)[1]:
                with signals_wait():  # else a request that ends the command between the two has the text written again
                    written = os.write(to, self._waiting[: select.PIPE_BUF])
                    del self._waiting[:written]
        except BlockingIOError:  # ready for fewer bytes than these
            return
        except OSError as error:
            self._lose(error)

    def _close(self) -> None:
        if self._own >= 0:
            os.close(self._own)
        self._own = -1

    def _lose(self, error: OSError) -> None:
        self._waiting.clear()
        self._close()
        discard(self._stream)
        complain(f"cox run: standard output cannot be written ({error.strerror}); this is taken as Ctrl-C")
        self._interrupts.hang_up()

    def __getattr__(self, name: str) -> Any:
        """All else (`isatty`, `encoding`, `fileno`) is the stream's."""
        return getattr(self._stream, name)


def _is_file(stream: TextIO) -> bool:
    """Whether the operating system can say when it takes more."""
    try:
        return stream.fileno() >= 0
    except OSError:
        return False


def _own_descriptor(stream: TextIO) -> int:
    """A terminal or a pipe once more, without waits: where its reader is halted, one that is ready may still wait amid a write.
    The flags of the descriptor that was given are of other processes too. -1: it needs none, or cannot be opened."""
    given = stream.fileno()
    if stat.S_ISREG(os.fstat(given).st_mode):
        return -1
    try:
        return os.open(f"/proc/self/fd/{given}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # such as a socket
        return -1


def discard(stream: TextIO) -> None:
    """Sends what the stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain(message: str) -> None:
    """Prints on standard error, if that can be written."""
    with suppress(OSError):
        typer.echo(message, err=True)
