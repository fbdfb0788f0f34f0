"""Manifests in the object store: finds the newest, creates new ones, collects garbage. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.planlog import steps_key
from coxswain.wire import CheckpointManifest, StepLine
from coxswain_coordinator.checkpoint.pending import garbage, kept_steps, objects_of
from coxswain_coordinator.checkpoint.validation import (
    check_manifest,
    check_recorded,
    check_run,
    manifest_key_of,
    read_manifest,
    read_run,
    run_record,
)
from coxswain_link.store import BucketNotFound, NotFound, Store

RUN_KEY = "run.json"
_DELETES_AT_ONCE = 16


class CheckpointStore:
    """The checkpoints of one job.

    Only this class writes under `manifests/` or deletes under `shards/`.
    """

    _manifests: dict[int, CheckpointManifest]  # by step; `open` reads them

    def __init__(self, job: JobConfig, store: Store) -> None:
        self._job, self._store = job, store
        self.deletes_at_once = _DELETES_AT_ONCE

    def open(self, recorded: int = 0) -> CheckpointManifest | None:
        """Claims the location for this run and returns the newest manifest.

        Raises Refused, naming a torn or foreign manifest, or one that is older than the `recorded`
        step of the job's status.
        """
        self._claim()
        self._manifests = self._read_all()
        check_recorded(self._job, max(self._manifests, default=0), recorded)
        if not self._manifests:
            return None
        newest = self._manifests[max(self._manifests)]
        check_manifest(self._job, newest, self._shard_sizes())
        return newest

    def newest(self) -> CheckpointManifest | None:
        """The newest manifest as it is now: the coordinator before may have made one since `open`."""
        self._manifests = self._read_all()
        return self._manifests[max(self._manifests)] if self._manifests else None

    def _claim(self) -> None:
        """Records this run as the owner. A run that never planned a step leaves the place to another stream."""
        record = msgspec.json.encode(run_record(self._job))
        if self._created(record):
            return
        found = read_run(RUN_KEY, self._store.get(RUN_KEY))
        if found.uid == self._job.uid and not (self._store.list("manifests/") or self._store.list("log/")):
            self._store.put(RUN_KEY, record)
        else:
            check_run(self._job, found)

    def _created(self, record: bytes) -> bool:
        try:
            return self._store.create(RUN_KEY, record)
        except (NotFound, BucketNotFound) as error:
            raise Refused(
                "CheckpointNotFound", f"checkpoint.uri: {error}; create the bucket or name another"
            ) from error

    def record(self, step: int, lines: Sequence[StepLine]) -> None:
        """Stores the lines of closed steps before `step`: a run directory is lost with its pod."""
        if lines:
            self._store.put(steps_key(step), b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def create(self, manifest: CheckpointManifest) -> None:
        """Creates the manifest. One of that step by an earlier coordinator holds the same state: it stays."""
        key = manifest_key_of(manifest)
        if not self._store.create(key, msgspec.json.encode(manifest)):
            manifest = read_manifest(key, self._store.get(key))
        self._manifests[manifest.step] = manifest

    def collect(self, pending: Callable[[], set[str]]) -> None:
        """Deletes what `keepLast` and `keepEvery` no longer keep, beside the training.

        `pending`: keys of shards whose manifest is still to come, asked again and again.
        """
        known = dict(self._manifests)  # `create` may add one meanwhile, never one that is dropped
        keep = kept_steps(self._job.checkpoint, known)
        kept, dropped = ([m for s, m in known.items() if (s in keep) == wanted] for wanted in (True, False))
        manifests, shards = garbage(kept, dropped, pending())
        self.delete(manifests)
        for first in range(0, len(shards), self.deletes_at_once):
            saved = pending()
            self.delete([key for key in shards[first : first + self.deletes_at_once] if key not in saved])
        for manifest in dropped:
            self._manifests.pop(manifest.step, None)

    def collect_orphans(self) -> int:
        """Deletes shards that no manifest names: leftovers of saves that never completed.

        Safe only while nothing is saved: at the end, and after the first generation of a process,
        which fences the coordinator before, until that generation's workers start.
        """
        self._manifests = self._read_all()
        live = objects_of(s for m in self._manifests.values() for s in m.shards)
        orphans = [key for key in self._shard_sizes() if key not in live]
        self.delete(orphans)
        return len(orphans)

    def collect_garbage(self) -> None:
        """Deletes what a crash left behind. Call it at the job's end, when no save is under way."""
        self._manifests = self._read_all()
        self.collect(set)
        self.collect_orphans()

    @property
    def resumable(self) -> int:
        """The first step that a world may still begin with: that of the oldest of the last checkpoints that are kept."""
        return min(sorted(self._manifests)[-self._job.checkpoint.keep_last :], default=0)

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes `deletes_at_once` objects at a time: a request takes tens of milliseconds, a checkpoint has thousands."""
        if self.deletes_at_once == 1:
            for key in keys:
                self._store.delete(key)
            return
        with ThreadPoolExecutor(self.deletes_at_once, "garbage") as threads:
            list(threads.map(self._store.delete, keys))

    def _read_all(self) -> dict[int, CheckpointManifest]:
        found = [read_manifest(o.path, self._store.get(o.path)) for o in self._store.list("manifests/")]
        return {m.step: m for m in found}

    def _shard_sizes(self) -> dict[str, int]:
        return {o.path: o.size for o in self._store.list("shards/")}
