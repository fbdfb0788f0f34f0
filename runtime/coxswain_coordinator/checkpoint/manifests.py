"""The manifests of a checkpoint location. Their keys say which steps have one, and only the newest is decoded whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.planlog import manifest_key, manifest_step
from coxswain.wire import CheckpointManifest
from coxswain_coordinator.checkpoint.pending import Objects, objects, objects_of
from coxswain_coordinator.checkpoint.validation import check_manifest, first_missing, read_manifest, read_objects, torn
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import CorruptObject, NotFound, Store

log = logging.getLogger(__name__)
A = TypeVar("A")
B = TypeVar("B")

CALLS_AT_ONCE = 16


class Manifests:
    """The manifests of one job. The driver adds them while a collection in another thread forgets some."""

    def __init__(self, job: JobConfig, store: Store) -> None:
        self._job, self._store = job, store
        self._newest: CheckpointManifest | None = None  # that was found whole, or made
        self.steps = set[int]()
        self.bytes = 0  # of all, as they were listed
        self.belated: list[int] = []  # steps whose manifest counts for nothing
        self.named: dict[int, Objects] = {}  # by step, where it is known

    def newest(self) -> CheckpointManifest | None:
        """Lists the manifests and returns the newest, whose objects are all there.

        Raises Refused for one that is torn or foreign, but passes over one that came too late.
        """
        found = {step: o.size for o in self._store.list("manifests/") if (step := manifest_step(o.path)) is not None}
        steps, self.belated, self.bytes = set(found), [], sum(found.values())
        while steps and not self._is_whole(max(steps)):
            self.belated.append(max(steps))
            steps.remove(max(steps))
        self.steps = steps
        for step in self.named.keys() - found.keys():  # what they named and has stayed is an orphan
            self.named.pop(step, None)
        return self._newest if steps else None

    def _is_whole(self, step: int) -> bool:
        if self._newest is not None and self._newest.step == step:
            return True
        key = manifest_key(step)
        manifest = read_manifest(key, self._store.get(key))
        check_manifest(self._job, manifest)
        if missing := first_missing(manifest, self._sizes(manifest)):
            if not self._is_belated(manifest):
                raise torn(key, missing)
            log.warning("%s %s; it came after a later world had begun without it, and does not count", key, missing)
            return False
        self._newest, self.named[step] = manifest, objects(objects_of(manifest.shards))
        return True

    def _is_belated(self, manifest: CheckpointManifest) -> bool:
        """Whether the generation after its own began before it came: shards that no manifest names were garbage then."""
        after = PlanLog(self._store).generation(manifest.attempt_generation + 1)
        return after is not None and after.checkpoint < manifest_key(manifest.step)

    def made(self, step: int) -> CheckpointManifest | None:
        """The manifest of this step in the store, if it can be read and all that it names is there."""
        key = manifest_key(step)
        try:
            manifest = read_manifest(key, self._store.get(key))
        except CorruptObject:
            return None
        except Refused as error:
            if error.reason != "TornCheckpoint":
                raise
            return None
        return None if first_missing(manifest, self._sizes(manifest)) else manifest

    def add(self, manifest: CheckpointManifest) -> None:
        self._newest, self.named[manifest.step] = manifest, objects(objects_of(manifest.shards))
        self.steps.add(manifest.step)

    def forget(self, step: int) -> None:
        self.named.pop(step, None)
        self.steps.discard(step)

    def read(self, step: int) -> set[str] | None:
        """The keys of what this manifest names; None: it cannot be read. One that is gone names nothing."""
        key = manifest_key(step)
        try:
            return read_objects(key, self._store.get(key))
        except NotFound:
            return set()
        except Refused as error:
            log.warning("what %s names is not known: %s", key, error.message)
            return None

    def unread(self) -> list[int]:
        """Steps of manifests of which it is not known what they name."""
        return sorted(self.steps - self.named.keys())

    def learn(self, steps: Iterable[int]) -> bool:
        """Reads what these manifests name; whether all could be read."""
        found = dict(at_once(lambda step: (step, self.read(step)), steps))
        self.named |= {step: objects(keys) for step, keys in found.items() if keys is not None}
        return None not in found.values()

    def _sizes(self, manifest: CheckpointManifest) -> dict[str, int]:
        """Bytes by key of those objects of a manifest that are there: a listing has those of all kept manifests as well."""
        sizes = at_once(lambda key: (key, self._size(key)), objects_of(manifest.shards))
        return {key: size for key, size in sizes if size is not None}

    def _size(self, key: str) -> int | None:
        try:
            return self._store.head(key).size
        except NotFound:
            return None


def at_once(work: Callable[[A], B], items: Iterable[A], threads: int = CALLS_AT_ONCE) -> list[B]:
    """Does it for so many items at a time: a request takes tens of milliseconds, a checkpoint has thousands of objects."""
    if threads == 1:
        return list(map(work, items))
    with ThreadPoolExecutor(threads, "checkpoints") as pool:
        return list(pool.map(work, items))
