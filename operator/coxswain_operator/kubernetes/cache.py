"""The newest known state of every object of one kind. Pure, except for the queues of subscribers."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from coxswain.names import LABEL_JOB, LABEL_JOB_UID

Name = tuple[str, str]  # namespace, name
T = TypeVar("T")

REMEMBERED_UIDS = 4096  # of deleted objects


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object. `value` is its bytes, or a slim view."""

    name: Name
    uid: str
    version: int
    labels: Mapping[str, str]
    value: T

    @property
    def owner(self) -> str:
        """The uid of the job that owns it; empty without one."""
        return self.labels.get(LABEL_JOB_UID, "")

    @property
    def job(self) -> Name:
        """The namespace and name of that job."""
        return self.name[0], self.labels.get(LABEL_JOB, "")


@dataclass(frozen=True, slots=True)
class CacheEvent(Generic[T]):
    """A change of an entry; a deleted entry is as it was before."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    entry: Entry[T]


class Cache(Generic[T]):
    """Objects of one kind. `version`: it contains all changes up to this resourceVersion.

    It also takes what the operator's own writes return, so that a read sees them before the watch
    delivers them. An older state of an object never replaces a newer one. resourceVersions are
    compared as numbers; Kubernetes promises that since 1.35 (KEP-5504), and did it before.
    """

    def __init__(self, remembered: int = REMEMBERED_UIDS) -> None:
        self._entries: dict[Name, Entry[T]] = {}
        self._by_owner: dict[str, dict[Name, Entry[T]]] = {}
        self._owners: dict[Name, Counter[str]] = {}  # by job: how many objects each of those that had this name owns
        self._subscribers: list[asyncio.Queue[CacheEvent[T]]] = []
        self._remembered = remembered
        self._gone: OrderedDict[str, None] = OrderedDict()  # uids that a late list may still contain
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: Name) -> Entry[T] | None:
        return self._entries.get(name)

    def select(self, namespace: str, labels: Mapping[str, str] | None = None) -> Iterator[Entry[T]]:
        """Entries with all of these labels, in a namespace or in all (""). A job's uid limits the search."""
        wanted = (labels or {}).items()
        owner = (labels or {}).get(LABEL_JOB_UID)
        entries = self._entries if owner is None else self._by_owner.get(owner, {})
        for entry in entries.values():
            if (not namespace or entry.name[0] == namespace) and wanted <= entry.labels.items():
                yield entry

    def owners(self, namespace: str, job: str) -> Collection[str]:
        """The uids of all jobs that have had this name and own an object."""
        return self._owners.get((namespace, job), {}).keys() - {""}

    def of_owner(self, owner: str) -> Iterable[Entry[T]]:
        return self._by_owner.get(owner, {}).values()

    def subscribe(self) -> asyncio.Queue[CacheEvent[T]]:
        """A queue of all changes from now on."""
        queue: asyncio.Queue[CacheEvent[T]] = asyncio.Queue()
        self._subscribers.append(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[CacheEvent[T]]) -> None:
        self._subscribers.remove(queue)

    def replace(self, listed: set[Name], version: int) -> None:
        """Ends a LIST of that version: removes what it lacks, except what own writes made after it."""
        for name in [n for n, e in self._entries.items() if n not in listed and e.version <= version]:
            self._remove(name)
        self.version = max(self.version, version)

    def gone(self) -> frozenset[str]:
        """Uids that no LIST contains that is asked for from now on, unless a backup of the server was restored."""
        return frozenset(self._gone)

    def is_ahead(self, entry: Entry[T], version: int) -> bool:
        """Whether a later state is known than a current LIST of that version has, and one that the LIST should have."""
        known = self._entries.get(entry.name)
        return known is not None and entry.version < known.version <= version

    def restart(self) -> None:
        """The server's versions begin again: any state that it gives from now on is newer than the known one."""
        self._gone.clear()  # what was deleted may be back
        self.version = 0
        for name, entry in self._entries.items():
            self._entries[name] = self._by_owner[entry.owner][name] = replace(entry, version=0)

    def reach(self, version: int) -> None:
        """The watch has reached this version."""
        self.version = max(self.version, version)

    def apply_write(self, entry: Entry[T]) -> bool:
        """Takes what an own write returned; False if the watch has passed it: the object may be gone."""
        return entry.version > self.version and self.put(entry)

    def apply_delete(self, name: Name, uid: str) -> None:
        """A delete took effect at once. A uid never comes back."""
        if uid:
            self._gone[uid] = None
        if len(self._gone) > self._remembered:
            self._gone.popitem(last=False)
        if name in self._entries and uid in ("", self._entries[name].uid):
            self._remove(name)

    def put(self, entry: Entry[T]) -> bool:
        """Takes a state of an object; False if it is not newer than the known one."""
        known = self._entries.get(entry.name)
        if entry.uid in self._gone or (known is not None and known.version >= entry.version):
            return False
        if known is not None:
            self._count(known, -1)
            if known.owner != entry.owner:
                self._disown(known)
        self._entries[entry.name] = entry
        self._by_owner.setdefault(entry.owner, {})[entry.name] = entry
        self._count(entry, 1)
        if known is None or known.uid != entry.uid or known.value != entry.value:
            self._notify(CacheEvent("MODIFIED" if known else "ADDED", entry))
        return True

    def forget(self, name: Name, version: int) -> None:
        """The watch reports a deletion; one that is older than the entry is ignored."""
        known = self._entries.get(name)
        if known is not None and known.version <= version:
            self._remove(name)

    def _remove(self, name: Name) -> None:
        entry = self._entries.pop(name)
        self._count(entry, -1)
        self._disown(entry)
        self._notify(CacheEvent("DELETED", entry))

    def _disown(self, entry: Entry[T]) -> None:
        """Of an owner without objects nothing stays."""
        mine = self._by_owner[entry.owner]
        del mine[entry.name]
        if not mine:
            del self._by_owner[entry.owner]

    def _count(self, entry: Entry[T], by: int) -> None:
        owners = self._owners.setdefault(entry.job, Counter())
        owners[entry.owner] += by
        if not owners[entry.owner]:
            del owners[entry.owner]
        if not owners:
            del self._owners[entry.job]

    def _notify(self, event: CacheEvent[T]) -> None:
        for queue in self._subscribers:
            queue.put_nowait(event)
