"""Trainers that still import what their workers need: they have registered, and have no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from coxswain.wire import Register
from coxswain_coordinator.state.registry import join

IMPORT_SECONDS = 120.0
"""Seconds for which others wait for a trainer that imports what workers need, where they can do without it: it may hang."""


def is_importing(member: Register) -> bool:
    """Whether it has not registered since with workers: until they are there its agent may have to wait in its world."""
    return member.starting is True


def awaited_imports(members: Iterable[Register]) -> str:
    """Which of them are waited for, and until when; empty: none imports."""
    names = [member.name for member in members if is_importing(member)]
    return f"{join(names)} to import what workers need" if names else ""


class Imports:
    """How long trainers have been importing, by the loop's clock."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}  # by name, of its latest instance

    def record(self, member: Register) -> None:
        """It has registered, perhaps once more."""
        if is_importing(member) and self._since.get(member.name, ("", 0.0))[0] != member.instance:
            self._since[member.name] = member.instance, asyncio.get_running_loop().time()

    def hang(self, member: Register) -> bool:
        """Whether those of a recorded member take longer than others wait for."""
        return is_importing(member) and asyncio.get_running_loop().time() - self._since[member.name][1] > IMPORT_SECONDS
