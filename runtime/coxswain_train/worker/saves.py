"""The saves of a worker in one world, and the waits for them: before a change, before the next save, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from coxswain import wire
from coxswain.errors import Retryable
from coxswain_link.outbox import Outbox
from coxswain_train.checkpoint.listings import LARGE_WORLD
from coxswain_train.checkpoint.save_load import Saver
from coxswain_train.checkpoint.snapshots import State
from coxswain_train.worker.prefetch import PATIENCE
from coxswain_train.worker.world_check import WorldCheck

DRAIN_SECONDS = 30.0  # seconds to stay at a suspension in which no peer writes a part of its save
_LOOK_SECONDS = 0.1  # between two looks for the end of a world


class Saves:
    """What a worker of `ranks` saves. Each wait raises Stale once its world is over, since the state in memory counts then."""

    def __init__(
        self, saver: Saver, outbox: Outbox, check_world: WorldCheck, rank: int, ranks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._saver, self._outbox, self._check_world, self._clock = saver, outbox, check_world, clock
        self._rank, self._ranks = rank, ranks

    def begin(self, directive: wire.StepDirective, boxes: Callable[[], State]) -> None:
        """Waits for the save before, then snapshots what the rank owns. Its report goes out once the shards are written."""
        self.wait()
        generation, step, outbox = self._check_world.generation, directive.step, self._outbox
        rank, ranks = self._rank, self._ranks  # no more of this world: a save may outlive it

        def report(shards: tuple[wire.Shard, ...], seconds: float) -> None:
            saved = wire.ShardsSaved(generation, step, rank, ranks, shards, seconds, directive.end)
            outbox.put("/v1/saved", step, saved)

        large = ranks >= LARGE_WORLD
        self._saver.begin(boxes(), report, generation, sidecars=large, progress=outbox.advance)

    def wait(self) -> None:
        """Raises the error of the save that is under way: behind one before a change or the end no later step would raise it."""
        while not self._saver.has_ended(_LOOK_SECONDS):
            self._check_world()
        self._saver.check()

    def wait_at_end(self, directive: wire.StepDirective) -> None:
        """Waits for the manifest: a new coordinator may need the reports again.

        All ranks agree where the data or the steps end. On a stop they may not, if the coordinator ended just then:
        a peer that trains on alone waits for this rank to leave, so this rank leaves also without a manifest, once no peer writes
        a part of it. Elsewhere the coordinator decides how long a peer may save.
        """
        self.wait()
        self._await_sent(PATIENCE)
        try:
            self._await_sent(inf if directive.end == "Completed" else DRAIN_SECONDS, directive.step)
        except Retryable:
            if directive.end == "Completed":
                raise

    def _await_sent(self, seconds: float, step: int = 0) -> None:
        """Waits until all is sent, and the steps below this one are in a checkpoint. Raises Retryable after so many seconds in
        which no rank has written a part of the last checkpoint."""
        end, saving = self._clock() + seconds, self._outbox.saving
        while not self._outbox.has_sent(_LOOK_SECONDS, step):
            self._check_world()
            if self._outbox.saving != saving:
                end, saving = self._clock() + seconds, self._outbox.saving
            if self._clock() >= end:
                self._outbox.flush(0.0, step)
