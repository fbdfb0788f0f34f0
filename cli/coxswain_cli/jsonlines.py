"""Output for scripts: one JSON object a line on standard output; the last has the type `end`."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import msgspec

from coxswain_cli.interrupts import complain
from coxswain_cli.progress import View
from coxswain_cli.summary import exit_code
from coxswain_cli.workdir import condition, last_step

Manifest = dict[str, Any]


class JsonOutput:
    """An Output that is its own Display. Each line is flushed at once, whole."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = ("", "")

    def show(self, view: View) -> None:
        for event in view.new_events:
            self._write("event", time=event.time, reason=event.reason, message=event.message)
        for step in view.new_steps:
            self._write("step", **msgspec.to_builtins(step))
        if (now := (view.state, view.waiting_for)) != self._last:
            self._last = now
            self._write("state", state=view.state, waiting_for=view.waiting_for, step=view.step, steps=view.steps)
        self._out.flush()  # what a slow reader did not take before

    def say(self, text: str) -> None:
        self._write("note", message=text)

    def end(self, job: Manifest, workdir: Path) -> None:
        """Writes how the job ended and where its files are: of the whole run, not of this command."""
        how, last = condition(job, "Succeeded"), last_step(workdir)
        self._write(
            "end",
            exit_code=exit_code(job),
            job=job["metadata"]["name"],
            state=how.get("reason", "Unknown"),
            message=how.get("message", ""),
            step=last.step + 1 if last else 0,
            loss=last.loss if last else None,
            checkpoint=job.get("status", {}).get("lastCheckpoint"),
            workdir=str(workdir),
        )

    def refuse(self, code: int, reason: str, message: str) -> None:
        """Writes the message to standard error as well."""
        complain(message)
        self._write("end", exit_code=code, state=reason, message=message)

    def display(self) -> JsonOutput:
        return self

    def __enter__(self) -> JsonOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: no line is held back."""

    def _write(self, type_: str, **fields: Any) -> None:
        line = {"type": type_, **fields}
        try:
            text = msgspec.json.encode(line).decode()
        except UnicodeEncodeError:  # a path or an argument that is not UTF-8
            text = json.dumps(line)
        self._out.write(text + "\n")
        self._out.flush()
