"""Registered agents, loaders and constructors, by role and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from coxswain.errors import Refused
from coxswain.wire import LoaderAddress, Register, Role

Arrival = Literal["new", "same", "replaced"]


class MemberRegistry:
    """The services that have registered.

    A name has one instance: another instance means that the process before is gone.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[Role, str], Register] = {}
        self._awaited: set[tuple[Role, str]] = set()

    def register(self, member: Register) -> Arrival:
        """Idempotent by instance. Raises Refused for a name that does not end in a number."""
        index_of(member.name)
        before = self._members.get((member.role, member.name))
        self._members[member.role, member.name] = member
        self._awaited.discard((member.role, member.name))
        if before is None:
            return "new"
        return "same" if before.instance == member.instance else "replaced"

    def knows(self, instance: str) -> bool:
        """Whether this process has registered since its role was last expected to."""
        return any(m.instance == instance for key, m in self._members.items() if key not in self._awaited)

    def expect_again(self, role: Role) -> None:
        """From now on members of this role are missing until they register again."""
        self._awaited |= {key for key in self._members if key[0] == role}

    def of(self, role: Role, count: int | None = None) -> list[Register]:
        """Members of a role by index; with `count` only the indices below it."""
        found = sorted((m for (r, _), m in self._members.items() if r == role), key=lambda m: index_of(m.name))
        return [m for m in found if count is None or index_of(m.name) < count]

    def member(self, role: Role, name: str) -> Register | None:
        """None: it has not registered with this coordinator."""
        return self._members.get((role, name))

    def missing(self, role: Role, count: int) -> list[str]:
        """Names of the first `count` members of a role that have not registered (again)."""
        present = {m.name for m in self.of(role) if (role, m.name) not in self._awaited}
        return [name for i in range(count) if (name := f"{role}-{i}") not in present]

    def loader_addresses(self) -> tuple[LoaderAddress, ...]:
        return tuple(LoaderAddress(m.name, m.host, m.port, m.instance) for m in self.of("loader"))

    def __len__(self) -> int:
        return len(self._members)


def index_of(name: str) -> int:
    """`trainer-2` -> 2."""
    number = name.rpartition("-")[2]
    if not number.isdecimal():
        raise Refused("BadName", f"register.name {name!r}: expected ROLE-NUMBER, e.g. trainer-2")
    return int(number)


def join(names: Iterable[str], limit: int = 4) -> str:
    """`a, b, c and 7 more`, for people."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
