"""What an informer knows: the newest state of every object, whoever told it first. Pure, but for its subscribers' queues."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from coxswain.names import LABEL_JOB_UID

Name = tuple[str, str]  # namespace, name
T = TypeVar("T")

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object. `value` is what is kept of it: its bytes, or a slim view."""

    name: Name
    uid: str
    version: int
    labels: Mapping[str, str]
    value: T

    @property
    def owner(self) -> str:
        """The uid of the job that it belongs to; empty for what belongs to none."""
        return self.labels.get(LABEL_JOB_UID, "")


@dataclass(frozen=True, slots=True)
class CacheEvent(Generic[T]):
    """A change of an entry; of one that was deleted, as it was."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    entry: Entry[T]


class Cache(Generic[T]):
    """Objects of one kind. `version`: everything that happened up to this resourceVersion is in it.

    It also hears what the operator's own writes returned, before the watch tells of them, so that a look never lacks them.
    Older news about an object never replaces newer. resourceVersions are compared as numbers, which Kubernetes has
    promised since 1.35 (KEP-5504) and always done.
    """

    def __init__(self) -> None:
        self._entries: dict[Name, Entry[T]] = {}
        self._by_owner: dict[str, dict[Name, Entry[T]]] = {}
        self._subscribers: list[asyncio.Queue[CacheEvent[T]]] = []
        self._gone: OrderedDict[str, None] = OrderedDict()  # uids: a list that was under way may still tell of them
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: Name) -> Entry[T] | None:
        return self._entries.get(name)

    def select(self, namespace: str, labels: Mapping[str, str] | None = None) -> Iterator[Entry[T]]:
        """Those with all of these labels, in a namespace or in all (""). Asked for a job's, it looks at no others."""
        wanted = (labels or {}).items()
        owner = (labels or {}).get(LABEL_JOB_UID)
        entries = self._entries if owner is None else self._by_owner.get(owner, {})
        for entry in entries.values():
            if (not namespace or entry.name[0] == namespace) and wanted <= entry.labels.items():
                yield entry

    def of_owner(self, owner: str) -> Iterable[Entry[T]]:
        return self._by_owner.get(owner, {}).values()

    def subscribe(self) -> asyncio.Queue[CacheEvent[T]]:
        """All changes from now on."""
        queue: asyncio.Queue[CacheEvent[T]] = asyncio.Queue()
        self._subscribers.append(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[CacheEvent[T]]) -> None:
        self._subscribers.remove(queue)

    def replace(self, listed: set[Name], version: int) -> None:
        """A whole list of that version has been put: what is not in it is gone, but for what our own writes made since."""
        for name in [n for n, e in self._entries.items() if n not in listed and e.version <= version]:
            self._remove(name)
        self.version = max(self.version, version)

    def reach(self, version: int) -> None:
        """The watch has got to here."""
        self.version = max(self.version, version)

    def apply_write(self, entry: Entry[T]) -> bool:
        """What a write returned; whether it was news. Not if the watch was there already: the object may have gone since."""
        return entry.version > self.version and self.put(entry)

    def apply_delete(self, name: Name, uid: str) -> None:
        """A delete took effect at once. A uid never comes back."""
        if uid:
            self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        if name in self._entries and uid in ("", self._entries[name].uid):
            self._remove(name)

    def put(self, entry: Entry[T]) -> bool:
        """Whether it was news."""
        known = self._entries.get(entry.name)
        if entry.uid in self._gone or (known is not None and known.version >= entry.version):
            return False
        if known is not None and known.owner != entry.owner:
            self._by_owner[known.owner].pop(known.name)
        self._entries[entry.name] = entry
        self._by_owner.setdefault(entry.owner, {})[entry.name] = entry
        if known is None or known.uid != entry.uid or known.value != entry.value:
            self._notify(CacheEvent("MODIFIED" if known else "ADDED", entry))
        return True

    def forget(self, name: Name, version: int) -> None:
        """The watch tells that it was deleted."""
        known = self._entries.get(name)
        if known is not None and known.version <= version:
            self._remove(name)

    def _remove(self, name: Name) -> None:
        entry = self._entries.pop(name)
        mine = self._by_owner[entry.owner]
        del mine[name]
        if not mine:
            del self._by_owner[entry.owner]
        self._notify(CacheEvent("DELETED", entry))

    def _notify(self, news: CacheEvent[T]) -> None:
        for queue in self._subscribers:
            queue.put_nowait(news)
