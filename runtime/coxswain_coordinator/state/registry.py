"""Registered agents, loaders and constructors, by role and name."""

from __future__ import annotations

from collections import Counter, defaultdict
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
        self._members: dict[Role, dict[int, Register]] = defaultdict(dict)
        self._present: dict[Role, set[int]] = defaultdict(set)  # registered since their role was last expected to
        self._instances = Counter[str]()  # of the present members
        self.version = 0  # changes with what is registered: not where a member registers once more as it was

    def register(self, member: Register) -> Arrival:
        """Idempotent by instance. Raises Refused for a name that does not end in a number."""
        before, index = self.member(member.role, member.name), index_of(member.name)
        known = before == member and index in self._present[member.role]
        self._take_out(member.role, index)
        self.version += not known
        self._members[member.role][index] = member
        self._present[member.role].add(index)
        self._instances[member.instance] += 1
        if before is None:
            return "new"
        return "same" if before.instance == member.instance else "replaced"

    def successor(self, member: Register) -> str:
        """The registered pod that has replaced this one, which runs on a node that the cluster has lost; else empty."""
        known = self.member(member.role, member.name)
        return known.pod if known is not None and is_earlier(member.pod, known.pod) else ""

    def expect(self, role: Role, name: str) -> None:
        """From now on this member is missing until it registers (again)."""
        self.version += self._take_out(role, index_of(name))

    def _take_out(self, role: Role, index: int) -> bool:
        """Whether it was there."""
        if index not in self._present[role]:
            return False
        self._present[role].discard(index)
        instance = self._members[role][index].instance
        self._instances[instance] -= 1
        if not self._instances[instance]:
            del self._instances[instance]  # else each process that ever was stays
        return True

    def knows(self, instance: str) -> bool:
        """Whether this process has registered since its role was last expected to."""
        return self._instances[instance] > 0

    def expect_again(self, role: Role) -> None:
        """From now on members of this role are missing until they register again."""
        for index in list(self._present[role]):
            self.expect(role, self._members[role][index].name)

    def of(self, role: Role, count: int | None = None) -> list[Register]:
        """Members of a role by index; with `count` only the indices below it."""
        found = self._members[role]
        return [found[index] for index in sorted(found) if count is None or index < count]

    def present(self, role: Role, count: int) -> list[Register]:
        """Those of the first `count` members of a role that are not missing, by index."""
        return [self._members[role][index] for index in sorted(self._present[role]) if index < count]

    def member(self, role: Role, name: str) -> Register | None:
        """None: it has not registered with this coordinator."""
        return self._members[role].get(index_of(name))

    def missing(self, role: Role, count: int) -> list[str]:
        """Names of the first `count` members of a role that have not registered (again)."""
        present = self._present[role]
        return [f"{role}-{index}" for index in range(count) if index not in present]

    def has_all(self, role: Role, count: int) -> bool:
        """Whether none of the first `count` members of a role is missing."""
        return len(self._present[role]) >= count and not self.missing(role, count)

    def nodes(self) -> tuple[str, ...]:
        """Of each trainer by its index; empty where it is not known."""
        known = {index_of(member.name): member.node for member in self.of("trainer")}
        return tuple(known.get(index, "") for index in range(1 + max(known, default=-1)))

    def loader_addresses(self) -> tuple[LoaderAddress, ...]:
        return tuple(LoaderAddress(m.name, m.host, m.port, m.instance) for m in self.of("loader"))

    def instances(self, trainers: int) -> set[str]:
        """Of every member, but for those of trainers that a smaller size has taken out."""
        counts: dict[Role, int | None] = {"loader": None, "trainer": trainers, "constructor": trainers}
        return {member.instance for role, count in counts.items() for member in self.of(role, count)}


def index_of(name: str) -> int:
    """`trainer-2` -> 2."""
    number = name.rpartition("-")[2]
    if not number.isdecimal():
        raise Refused("BadName", f"register.name {name!r}: expected ROLE-NUMBER, e.g. trainer-2")
    return int(number)


def is_earlier(pod: str, other: str) -> bool:
    """Whether of two pods of one member this one was first: their names end in the incarnation."""
    (head, _, mine), (same, _, others) = pod.rpartition("-"), other.rpartition("-")
    return head == same and mine.isdecimal() and others.isdecimal() and int(mine) < int(others)


def join(names: Iterable[str], limit: int = 4) -> str:
    """`a, b, c and 7 more`, for people."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
