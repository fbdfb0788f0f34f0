"""Manifests in the object store: finds the newest, creates new ones, collects garbage. Blocking."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.planlog import steps_key
from coxswain.wire import CheckpointManifest, StepLine
from coxswain_coordinator.checkpoint.pending import garbage, kept_steps
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


class CheckpointStore:
    """The checkpoints of one job.

    Only this class writes under `manifests/` or deletes under `shards/`.
    """

    _manifests: dict[int, CheckpointManifest]  # by step; `open` reads them

    def __init__(self, job: JobConfig, store: Store) -> None:
        self._job, self._store = job, store

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

    def create(self, manifest: CheckpointManifest, pending: set[str]) -> None:
        """Creates the manifest, then deletes what `keepLast` and `keepEvery` no longer keep.

        A manifest of that step by an earlier coordinator holds the same state: it stays.
        """
        key = manifest_key_of(manifest)
        if not self._store.create(key, msgspec.json.encode(manifest)):
            manifest = read_manifest(key, self._store.get(key))
        self._manifests[manifest.step] = manifest
        self._collect(pending)

    def collect_orphans(self) -> int:
        """Deletes shards that no manifest names: leftovers of saves that never completed.

        Safe only while nothing is saved: at the end, and after the first generation of a process,
        which fences the coordinator before, until that generation's workers start.
        """
        self._manifests = self._read_all()
        live = {s.key for m in self._manifests.values() for s in m.shards}
        orphans = [key for key in self._shard_sizes() if key not in live]
        for key in orphans:
            self._store.delete(key)
        return len(orphans)

    def collect_garbage(self) -> None:
        """Deletes what a crash left behind. Call it at the job's end, when no save is under way."""
        self._manifests = self._read_all()
        self._collect(set())
        self.collect_orphans()

    def _collect(self, pending: set[str]) -> None:
        keep = kept_steps(self._job.checkpoint, self._manifests)
        kept = [m for step, m in self._manifests.items() if step in keep]
        dropped = [m for step, m in self._manifests.items() if step not in keep]
        manifests, shards = garbage(kept, dropped, pending)
        for key in manifests + shards:
            self._store.delete(key)
        self._manifests = {m.step: m for m in kept}

    def _read_all(self) -> dict[int, CheckpointManifest]:
        found = [read_manifest(o.path, self._store.get(o.path)) for o in self._store.list("manifests/")]
        return {m.step: m for m in found}

    def _shard_sizes(self) -> dict[str, int]:
        return {o.path: o.size for o in self._store.list("shards/")}
