"""Snapshots beside the training: when the copy is made, and what waits for it. The device is a fake."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from coxswain.boxes import full_box
from coxswain.wire import Shard
from coxswain_link.store import open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.checkpoint.snapshots import HostSnapshots, PinnedSnapshots, snapshots_of

BOX = full_box("w", (3,))


@dataclass
class SideStream:
    """A device whose copies are made when something waits for them, or when the test says that they are through."""

    done: list[str] = field(default_factory=list)
    buffers: int = 0
    through: threading.Event = field(default_factory=threading.Event)
    writer: queue.Queue[str] = field(default_factory=queue.Queue)  # what it does, in order

    def buffer(self, like: Tensor) -> Tensor:
        self.buffers += 1
        return torch.full_like(like, -1)

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> SideStream:
        self.done.append("copy begins")
        self._pairs = pairs
        return self

    def wait(self) -> None:
        self.done.append("the device waits")
        self._finish()

    def synchronize(self) -> None:
        self.writer.put("waits")
        assert self.through.wait(10)

    def _finish(self) -> None:
        for host, x in self._pairs:
            host.copy_(x)
        self.through.set()


def test_the_state_may_change_once_it_is_copied_and_what_is_written_is_the_copy(tmp_path: Path) -> None:
    side, values, shards = SideStream(), torch.tensor([1.0, 2.0, 3.0]), list[Shard]()
    store = open_store(f"file://{tmp_path}", create=True)
    saver = save_load.Saver(store, PinnedSnapshots(side))
    saver.begin({"parameter": {BOX: values}}, lambda written, _: shards.extend(written))
    assert side.done == ["copy begins"]
    saver.settle()
    values.zero_()
    saver.settle()
    assert side.done == ["copy begins", "the device waits"]
    saver.wait()
    (tensor,) = save_load.read_shard(store, shards[0]).values()
    assert tensor.tolist() == [1.0, 2.0, 3.0]


def test_a_writer_reads_the_buffers_only_after_the_copy(tmp_path: Path) -> None:
    side = SideStream()
    saver = save_load.Saver(open_store(f"file://{tmp_path}", create=True), PinnedSnapshots(side))
    saver.begin({"parameter": {BOX: torch.ones(3)}}, lambda *_: side.writer.put("has written"))
    assert side.writer.get(timeout=10) == "waits"
    saver.settle()
    assert side.writer.get(timeout=10) == "has written"
    saver.wait()


def test_saves_use_the_same_buffers_one_for_each_box(tmp_path: Path) -> None:
    side = SideStream()
    saver = save_load.Saver(open_store(f"file://{tmp_path}", create=True), PinnedSnapshots(side))
    for step in range(3):
        saver.begin({kind: {BOX: torch.full((3,), float(step))} for kind in ("parameter", "exp_avg")}, lambda *_: None)
        saver.settle()
    saver.wait()
    assert side.buffers == 2


def test_a_cpu_copies_at_once() -> None:
    values = torch.ones(3)
    snapshots = snapshots_of(torch.device("cpu"))
    assert isinstance(snapshots, HostSnapshots)
    entries, _ = snapshots.take({"parameter": {BOX: values}})
    values.zero_()
    assert [(kind, box, x.tolist()) for kind, box, x in entries] == [("parameter", BOX, [1.0, 1.0, 1.0])]
