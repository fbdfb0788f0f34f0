"""The output of a run: text for a terminal or a log here, JSON for scripts in `jsonlines`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console

from coxswain_cli.display import Display, display_for
from coxswain_cli.interrupts import complain
from coxswain_cli.summary import summary

Manifest = dict[str, Any]


class Output(Protocol):
    """The output of one command."""

    def display(self) -> Display:
        """Returns the display of the running job."""

    def say(self, text: str) -> None: ...

    def end(self, job: Manifest, workdir: Path) -> None:
        """Shows how the job ended, or where it stopped."""

    def refuse(self, code: int, reason: str, message: str) -> None:
        """Says why the command ends although its job has not."""


class TextOutput:
    """Text on standard output, refusals on standard error."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out)

    def display(self) -> Display:
        return display_for(self._console)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, job: Manifest, workdir: Path) -> None:
        for line in summary(job, workdir):
            self.say(line)

    def refuse(self, code: int, reason: str, message: str) -> None:
        complain(message)
