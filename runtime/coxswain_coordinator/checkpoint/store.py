"""Manifests in the object store: finds the newest, creates new ones, collects garbage. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.planlog import manifest_key, steps_key
from coxswain.wire import CheckpointManifest, StepLine
from coxswain_coordinator.checkpoint.manifests import CALLS_AT_ONCE, Manifests, at_once
from coxswain_coordinator.checkpoint.pending import kept_steps, objects, unnamed
from coxswain_coordinator.checkpoint.validation import check_recorded, check_run, manifest_key_of, read_run, run_record
from coxswain_link.store import BucketNotFound, NotFound, Store
from coxswain_link.store_faults import CONDITIONS_MISSING, CONDITIONS_NEEDED

log = logging.getLogger(__name__)

RUN_KEY = "run.json"
WRITTEN = (RUN_KEY, "shards/", "manifests/", "log/", "steps/", "index/", "live/")
"""What a run writes in its location: there may be files of the user beside it."""
SEARCHED_BYTES = 64 << 20
"""Of manifests, up to which a location is searched for orphans. Beyond, the search reads for minutes before a world, and a
leftover of a crash is little beside what is kept."""


class CheckpointStore:
    """The checkpoints of one job.

    Only this class writes under `manifests/` or deletes under `shards/`.
    """

    def __init__(self, job: JobConfig, store: Store, fence: Callable[[], None] = lambda: None) -> None:
        """`fence` raises Stale once another coordinator has begun: what this one has listed may be that one's since."""
        self._job, self._store, self._fence = job, store, fence
        self._manifests = Manifests(job, store)
        self._doomed: dict[int, set[str]] = {}  # by step, what a manifest names that is being dropped
        self.deletes_at_once = CALLS_AT_ONCE

    def open(self, recorded: int = 0) -> CheckpointManifest | None:
        """Claims the location for this run and returns the newest manifest.

        Raises Refused, naming a torn or foreign manifest, or one that is older than the `recorded`
        step of the job's status.
        """
        self._claim()
        self._manifests = Manifests(self._job, self._store)
        newest = self._manifests.newest()
        check_recorded(self._job, newest.step if newest else 0, recorded)
        return newest

    def newest(self) -> CheckpointManifest | None:
        """The newest manifest as it is now: the coordinator before may have made one since `open`."""
        return self._manifests.newest()

    def _claim(self) -> None:
        """Records this run as the owner. A run that never planned a step leaves the place to another stream."""
        record = msgspec.json.encode(run_record(self._job))
        there = self._recorded(record)
        self._check_creates(there)
        if there == record:
            return
        found = read_run(RUN_KEY, there)
        if found.uid == self._job.uid and not (self._store.list("manifests/") or self._store.list("log/")):
            self._store.put(RUN_KEY, record)
        else:
            check_run(self._job, found)

    def _recorded(self, record: bytes) -> bytes:
        """What is there now. It is asked for first: a create is not proved to replace nothing yet."""
        try:
            with suppress(NotFound):
                return self._store.get(RUN_KEY)
            return record if self._store.create(RUN_KEY, record) else self._store.get(RUN_KEY)
        except (NotFound, BucketNotFound) as error:
            raise Refused(
                "CheckpointNotFound", f"checkpoint.uri: {error}; create the bucket or name another"
            ) from error

    def _check_creates(self, there: bytes) -> None:
        """Raises Refused where a create replaces an object: the fence between two coordinators would be none.

        A server that ignores the condition then has one line break more in the record, and no other change.
        """
        if self._store.create(RUN_KEY, there + b"\n"):
            raise Refused(
                CONDITIONS_MISSING,
                f"{self._store.uri.rstrip('/')}/{RUN_KEY}: the server has replaced this object, although the request forbids it "
                f"(If-None-Match: *). {CONDITIONS_NEEDED}",
            )

    def record(self, generation: int, step: int, lines: Sequence[StepLine]) -> None:
        """Stores the lines of closed steps before `step`: a run directory is lost with its pod.

        Create-only, by world: a coordinator that was stopped behind its fence replaces no lines of its successor. One that has
        adopted the world may find those of the coordinator before: they are of the same steps.
        """
        if lines:
            content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            self._store.create(steps_key(step, generation), content)

    def create(self, manifest: CheckpointManifest) -> None:
        """Creates the manifest. One of that step by an earlier coordinator holds the same state: if all of it is there, it stays.

        It is not where that coordinator was fenced before it made it: its shards were garbage then.
        """
        key, data = manifest_key_of(manifest), msgspec.json.encode(manifest)
        if not self._store.create(key, data):
            if (earlier := self._manifests.made(manifest.step)) is None:
                self._store.put(key, data)
            manifest = earlier or manifest
        self._manifests.add(manifest)

    def drop_belated(self) -> None:
        """Deletes manifests that came too late. Call it once every coordinator before is fenced."""
        if self._manifests.belated:
            self._fence()
        self.delete([manifest_key(step) for step in self._manifests.belated])
        self._manifests.belated.clear()

    def collect(self, pending: Callable[[], set[str]]) -> bool:
        """Deletes a part of what `keepLast` and `keepEvery` no longer keep, beside the training: whether there may be more.

        A part is the reading of one manifest or the dropping of one, so none takes long.

        `pending`: keys of shards whose manifest is still to come, asked again and again.
        """
        steps = set(self._manifests.steps)
        keep = kept_steps(self._job.checkpoint, steps)
        dropped = sorted(steps - keep)
        if not dropped:
            return False
        unread = self._manifests.unread()
        if not unread:
            self._drop(dropped[0], pending)
        elif not self._manifests.learn(unread[:1]):
            if unread[0] in keep:
                log.warning("no checkpoint is dropped: it may share shards with one that is kept and cannot be read")
                return False
            self._manifests.named[unread[0]] = objects(())  # it is dropped in its turn, and its shards are orphans
        return True

    def _drop(self, step: int, pending: Callable[[], set[str]]) -> None:
        """Deletes a manifest, then what no other names, not even one that is made meanwhile."""
        others = {other: named for other, named in list(self._manifests.named.items()) if other != step}
        if step not in self._doomed:  # else the call before has failed amid the deletions
            self._doomed[step] = self._manifests.read(step) or set()
        shards = unnamed(self._doomed[step], others.values())
        self.delete([manifest_key(step)])
        for first in range(0, len(shards), self.deletes_at_once):
            saved = pending()  # asked before the manifests: what leaves it is in one of them by then
            now = list(self._manifests.named.items())
            made = [named for other, named in now if other != step and others.get(other) is not named]
            batch = shards[first : first + self.deletes_at_once]
            self.delete([key for key in unnamed(batch, made) if key not in saved])
        self._manifests.forget(step)
        del self._doomed[step]

    def collect_orphans(self, searched_bytes: int = SEARCHED_BYTES) -> int:
        """Deletes shards that no manifest names, and staging files: leftovers of saves that never completed.

        Safe only while nothing is saved: at the end, and after the first generation of a process,
        which fences the coordinator before, until that generation's workers start. A location with
        more than `searched_bytes` of manifests is not searched.
        """
        self._manifests.newest()
        self.drop_belated()
        if self._manifests.bytes > searched_bytes:
            log.info("shards that no manifest names stay: the manifests have %d bytes", self._manifests.bytes)
            return 0
        if staged := self._store.collect_staged(lambda key: key.startswith(WRITTEN)):
            log.info("%d files of writers that were killed are deleted", staged)
        if not self._manifests.learn(self._manifests.unread()):
            return 0
        orphans = unnamed((o.path for o in self._store.list("shards/")), self._manifests.named.values())
        self._fence()  # asked behind the listing: what another coordinator's world saves from now on is not in it
        self.delete(orphans)
        return len(orphans)

    def collect_garbage(self) -> None:
        """Deletes what a crash left behind. Call it at the job's end, when no save is under way."""
        self._manifests.newest()
        self._fence()
        while self.collect(set):
            self._fence()
        self.collect_orphans()

    @property
    def resumable(self) -> int:
        """The first step that a world may still begin with: that of the oldest of the last checkpoints that are kept."""
        return min(sorted(self._manifests.steps)[-self._job.checkpoint.keep_last :], default=0)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes `deletes_at_once` objects at a time."""
        at_once(self._store.delete, keys, self.deletes_at_once)
