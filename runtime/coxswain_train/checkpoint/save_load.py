"""Checkpoints by boxes: owned state to content-named safetensors shards and back, into any layout.

A save copies the owned boxes at the step boundary and writes in the background. A load reads the shards that hold part
of what this rank owns now, verifies each against its name, and fills its boxes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from coxswain.boxes import Box, Piece, match, window
from coxswain.structs import UNDECODABLE
from coxswain.wire import CheckpointManifest, Shard
from coxswain_link.store import NotFound, Store
from coxswain_train.checkpoint.listings import torn, with_boxes, with_listing
from coxswain_train.checkpoint.snapshots import Copied, HostSnapshots, Snapshots, State, StateEntry

SHARD_BYTES = 256 << 20  # a shard is closed once it holds this much


class Saver:
    """Writes one checkpoint at a time, beside the training."""

    def __init__(self, store: Store, snapshots: Snapshots | None = None) -> None:
        self._store, self._snapshots = store, snapshots or HostSnapshots()
        self._copied: Copied | None = None  # of the snapshot that a change of state must wait for
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[None] | None = None

    def begin(
        self, state: State, done: Callable[[tuple[Shard, ...], float], None], generation: int = 0, sidecars: bool = False,
        progress: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Snapshots now, writes later, then calls `done` (in the background) with the shards and the seconds it took.

        `generation`: of the world. `sidecars`: shards have their boxes there. Calls `progress` (in the background) after each
        shard.

        Waits for the save before, so that memory holds one snapshot at most. Call `settle` before the state changes.
        """
        self.wait()
        began = time.monotonic()
        entries, copied = self._snapshots.take(state)
        self._copied = copied

        def write() -> None:
            copied.synchronize()
            shards: list[Shard] = []
            for shard in write_shards(self._store, entries, generation=generation):
                shards.append(with_listing(self._store, shard, generation) if sidecars else shard)
                progress()
            done(tuple(shards), time.monotonic() - began)

        self._running = self._thread.submit(write)

    def settle(self) -> None:
        """Lets the device change the state once its snapshot is taken. The host goes on."""
        copied, self._copied = self._copied, None
        if copied is not None:
            copied.wait()

    def check(self) -> None:
        """Raises the error of a save that has ended."""
        if self._running is not None and self._running.done():
            self.wait()

    def has_ended(self, patience: float) -> bool:
        """Whether nothing is being written, after so many seconds at most."""
        return self._running is None or bool(wait([self._running], patience).done)

    def wait(self) -> None:
        """Returns when nothing is being written; raises the error of the save."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


def write_shards(
    store: Store, entries: Iterable[StateEntry], shard_bytes: int = SHARD_BYTES, generation: int = 0
) -> Iterator[Shard]:
    """Their content names the world: a coordinator of an earlier one, whose deletions may come late, never knows their names."""
    for group in _groups(entries, shard_bytes):
        tensors = {str(i): values for i, (_, _, values) in enumerate(group)}
        data = safetensors.torch.save(tensors, {"generation": str(generation)})
        key = f"shards/{hashlib.sha256(data).hexdigest()}.safetensors"
        if not store.create(key, data):
            store.put(key, data)  # the object of this name may be damaged
        yield Shard(
            key=key, bytes=len(data), boxes=tuple(box for _, box, _ in group), kinds=tuple(kind for kind, _, _ in group)
        )


def _groups(entries: Iterable[StateEntry], shard_bytes: int) -> Iterator[list[StateEntry]]:
    group: list[StateEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += entry[2].nbytes
        if size >= shard_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def read_manifest(store: Store, key: str) -> CheckpointManifest:
    try:
        return msgspec.json.decode(store.get(key), type=CheckpointManifest)
    except NotFound as error:
        raise torn(f"{key} is missing, or another run with this checkpoint.uri has dropped it") from error
    except UNDECODABLE as error:
        raise torn(f"{key} is not a manifest ({error})") from error


def load(store: Store, shards: Iterable[Shard], state: State, progress: Callable[[], None] = lambda: None) -> None:
    """Fills the boxes of `state` from a checkpoint of any layout. Refused "TornCheckpoint" names a missing or damaged part.

    Calls `progress` after each shard.
    """
    shards = list(with_boxes(store, shards, {box for boxes in state.values() for box in boxes}))
    wanted = {kind: _pieces(shards, kind, boxes) for kind, boxes in state.items()}
    for shard in shards:
        needed = [
            (i, kind, piece)
            for i, (kind, box) in enumerate(zip(shard.kinds, shard.boxes, strict=True))
            for piece in wanted.get(kind, {}).get(box, ())
        ]
        if needed:
            _fill(read_shard(store, shard), needed, state)
            progress()


def _pieces(shards: list[Shard], kind: str, need: Iterable[Box]) -> dict[Box, list[Piece]]:
    """By held box, the parts of it that are needed."""
    have = [box for shard in shards for k, box in zip(shard.kinds, shard.boxes, strict=True) if k == kind]
    pieces, missing = match(have, need)
    if missing:
        raise torn(f"no shard holds all of {kind} {missing[0]} ({len(missing)} boxes are incomplete)")
    found: dict[Box, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.have, []).append(piece)
    return found


def read_shard(store: Store, shard: Shard) -> dict[str, Tensor]:
    """The tensors of a shard, whose content is verified against its name."""
    try:
        data = store.get(shard.key)
    except NotFound as error:
        raise torn(f"{shard.key} is missing") from error
    if shard.key != f"shards/{hashlib.sha256(data).hexdigest()}.safetensors":
        raise torn(f"{shard.key} is damaged: its content is not what its name says")
    return safetensors.torch.load(data)


def _fill(tensors: dict[str, Tensor], needed: list[tuple[int, str, Piece]], state: State) -> None:
    for i, kind, piece in needed:
        source = tensors[str(i)][window(piece.have, piece.part)]
        with torch.no_grad():
            state[kind][piece.need][window(piece.need, piece.part)].copy_(source)
