"""Kills a process before, during or after a write. Nothing that it does later has an effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from obstore.store import LocalStore

from coxswain_coordinator.state.jsonl import JsonlWriter
from coxswain_link.store import Store

T = TypeVar("T")

Moment = Literal["before", "amid", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "amid", "after")


class Killed(BaseException):
    """A SIGKILL: no handler catches it."""


@dataclass(frozen=True)
class Crash:
    """A crash at one write. `outage`: kills every process, else only the writer."""

    moment: Moment
    outage: bool = False


@dataclass(eq=False)
class Process:
    """A process that can be killed. Once killed it has no effect."""

    name: str
    alive: bool = True

    def check(self) -> None:
        if not self.alive:
            raise Killed(f"{self.name} is dead")


@dataclass
class Fate:
    """All writes of one job in order, by any process, and the crashes by number of the write."""

    crashes: Mapping[int, Crash]
    outage: Callable[[], None]  # kills every process
    writes: list[str] = field(default_factory=list)  # written or about to be
    struck: list[int] = field(default_factory=list)  # crashes that have happened
    asked: int = 0  # writes when the job was asked to stop

    def write(self, process: Process, what: str, whole: Callable[[], T], half: Callable[[], None]) -> T:
        process.check()
        number = len(self.writes)
        self.writes.append(f"{process.name}: {what}")
        crash = self.crashes.get(number)
        if crash is None:
            return whole()
        self.struck.append(number)
        if crash.moment == "amid":
            half()
        if crash.moment == "after":
            whole()
        process.alive = False
        if crash.outage:
            self.outage()
        raise Killed(f"{self.writes[-1]} ({crash})")


class MortalStore(Store):
    """A folder as the object store of one process."""

    def __init__(self, store: Store, folder: Path, process: Process, fate: Fate) -> None:
        super().__init__(LocalStore(prefix=folder), store.uri)
        self._folder, self._process, self._fate = folder, process, fate

    def get(self, key: str) -> bytes:
        self._process.check()
        return super().get(key)

    def put(self, key: str, data: bytes) -> None:
        whole, half = super().put, lambda: self._stage(key, data)
        self._fate.write(self._process, f"put {key}", lambda: whole(key, data), half)

    def create(self, key: str, data: bytes) -> bool:
        whole, half = super().create, lambda: self._stage(key, data)
        return self._fate.write(self._process, f"create {key}", lambda: whole(key, data), half)

    def delete(self, key: str) -> None:
        whole = super().delete
        self._fate.write(self._process, f"delete {key}", lambda: whole(key), lambda: None)

    def _stage(self, key: str, data: bytes) -> None:
        """Leaves what a killed writer leaves: half of its staged file, beside the final name."""
        staged = self._folder / f"{key}#1"
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(data[: len(data) // 2])


class MortalJsonlWriter(JsonlWriter):
    def __init__(self, folder: Path, name: str, process: Process, fate: Fate) -> None:
        super().__init__(folder, name)
        self._name, self._file, self._process, self._fate = name, folder / name, process, fate

    def append(self, value: Any) -> None:
        whole = super().append
        self._fate.write(self._process, f"append {self._name}", lambda: whole(value), lambda: self._tear(value))

    def _tear(self, value: Any) -> None:
        line = msgspec.json.encode(value)
        with self._file.open("ab") as file:
            file.write(line[: len(line) // 2])
            os.fsync(file.fileno())
