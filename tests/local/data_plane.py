"""A data plane: known documents, a scripted coordinator, real loaders and constructors."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from coxswain import config, names
from coxswain.digests import tokens_digest
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.planlog import LoaderShare
from coxswain.wire import (
    Ack,
    DeliveredDigests,
    Indexed,
    LoaderAddress,
    LoaderAddresses,
    Registered,
    Shares,
    SourceBlocks,
    StepPlan,
    StepPlans,
    World,
)
from coxswain_link.handover import Handover
from coxswain_link.step_buffer import StepArrays
from tests.children import Child
from tests.fake_coordinator import FakeCoordinator

TOKEN = "job-token"
STEPS = 12


@dataclass
class Corpus:
    """Documents by source, in index order."""

    folder: Path
    documents: dict[str, list[str]]

    def ids(self, sequence: Sequence) -> list[int]:
        """The token ids of a sequence under the tokenizer `bytes`, straight from the document."""
        whole = [*self.documents[sequence.source][sequence.index].encode(), 256]
        return whole[sequence.start : sequence.stop]


def write_corpus(folder: Path) -> Corpus:
    """Source `code` in Parquet, `docs` in several Jsonl files; long-tailed lengths."""
    rng = random.Random(3)
    texts = ["".join(rng.choices("abc ü\n", k=int(min(4000, 15 * rng.paretovariate(0.6))))) for _ in range(120)]
    (folder / "code").mkdir(parents=True)
    (folder / "docs").mkdir()
    for part in range(3):
        pq.write_table(
            pa.table({"text": texts[part * 20 : part * 20 + 20]}), folder / f"code/{part}.parquet", row_group_size=5
        )
    for part in range(6):
        lines = [json.dumps({"text": text}) for text in texts[60 + part * 10 : 70 + part * 10]]
        (folder / f"docs/{part}.jsonl").write_text("\n".join(lines) + "\n")
    return Corpus(folder, {"code": texts[:60], "docs": texts[60:]})


def job_of(corpus: Corpus, runs: Path, loaders: int) -> config.JobConfig:
    sources = tuple(
        config.SourceConfig(
            name=name, source=name, uri=(corpus.folder / name).as_uri(), format=format_, include="**", text_field="text",
            tokenizer=config.TokenizerConfig(kind="bytes"), weight=1,
        )
        for name, format_ in (("code", "Parquet"), ("docs", "Jsonl"))
    )  # fmt: skip
    return config.JobConfig(
        name="job", namespace="default", uid="u", seed=1,
        model=config.ModelConfig(layers=1, hidden=8, heads=1, kv_heads=1, feed_forward=8),
        mix=config.MixConfig(name="mix", seed=1, sources=sources), parallelism=config.ParallelConfig(),
        batch=config.BatchConfig(tokens_per_step=2000, max_sequence_tokens=1000),
        optimizer=config.OptimizerConfig(learning_rate=1e-3), stop_steps=STEPS, trainers=1, devices_per_trainer=1,
        min_trainers=1, loaders=loaders, checkpoint=config.CheckpointConfig(uri=runs.as_uri()),
    )  # fmt: skip


def sequences_of(corpus: Corpus, step: int) -> tuple[Sequence, ...]:
    """A step's membership: whole samples and pieces of long ones."""
    rng = random.Random(step)
    out = []
    for _ in range(8):
        source = rng.choice(["code", "docs"])
        index = rng.randrange(len(corpus.documents[source]))
        length = len(corpus.documents[source][index].encode()) + 1
        start = rng.randrange(length) // 500 * 500
        out.append(Sequence(source, 0, index, start, min(start + 500, length), length))
    return tuple(out)


def plan_of(corpus: Corpus, generation: int, step: int, replicas: int) -> StepPlan:
    """A random legal placement: every sequence cut into slices, each slice on any replica."""
    rng = random.Random(f"{generation} {step} {replicas}")
    sequences = sequences_of(corpus, step)
    tasks = []
    for position, sequence in enumerate(sequences):
        cuts = sorted({0, sequence.tokens, *(rng.randint(0, sequence.tokens) for _ in range(3))})
        parts = tuple(Slice(rng.randrange(replicas), position, a, b) for a, b in itertools.pairwise(cuts))
        tasks.append(Task(position, "ring", tuple(sorted({p.replica for p in parts})), parts))
    labels = sum(s.labels for s in sequences)
    return StepPlan(generation, step, sequences, tuple(tasks), (), labels, "", 0.0, 1.0)


class CorpusCoordinator(FakeCoordinator):
    """Gives loaders shares of a corpus, and constructors random legal plans for STEPS steps."""

    def __init__(self, corpus: Corpus, loaders: int, trainers: int = 1, devices: int = 1) -> None:
        super().__init__(TOKEN)
        self.corpus, self.loaders, self.trainers, self.devices = corpus, loaders, trainers, devices
        self.replicas = 0
        self.layout: Layout | None = None  # None: replicas of one device
        self.forgotten = 0  # steps below it are closed and their plans gone
        self.indexed: dict[LoaderShare, Indexed] = {}
        self.served: dict[int, dict[int, str]] = defaultdict(dict)
        self.answers |= {
            "/v1/register": lambda *_: Registered(self.generation if self._is_indexed() else 0),
            "/v1/shares": lambda query, _: Shares(tuple(s for s in self._shares() if s.loader == query["loader"])),
            "/v1/indexed": lambda _, body: self.indexed.update({body.share: body}),
            "/v1/loaders": self._loaders, "/v1/blocks": self._blocks, "/v1/plans": self._plans, "/v1/served": self._serve,
        }  # fmt: skip

    def begin(self, replicas: int, layout: Layout | None = None) -> int:
        """The next generation, of so many replicas over all devices in turn, or of those of the layout."""
        self.update(generation=self.generation + 1, replicas=replicas, layout=layout)
        return self.generation

    def await_served(self, step: int) -> dict[int, str]:
        """Digests of a step by the sequence's position, once all have come."""
        count = len(sequences_of(self.corpus, step))
        self.wait_until(lambda: len(self.served[step]) == count)
        return self.served[step]

    def await_registrations(self, role: str, count: int) -> None:
        """Waits until so many instances of a role have registered since the beginning."""
        self.wait_until(lambda: len({r.instance for r in self.received["/v1/register"] if r.role == role}) >= count)

    def world(self) -> World:
        devices = [Device(i // self.devices, i % self.devices) for i in range(self.replicas)]
        layout = self.layout or uniform_layout(devices, 1)
        trainers = tuple(f"trainer-{i}" for i in range(self.trainers))
        return World(self.generation, 0, layout, layout.ranks(), trainers, tuple(self._shares()))

    def world_after(self, generation: int) -> World | None:
        return self.world() if self.generation > generation and self._is_indexed() else None

    def _shares(self) -> list[LoaderShare]:
        return [
            LoaderShare(f"loader-{i}", s, i, self.loaders) for s in self.corpus.documents for i in range(self.loaders)
        ]

    def _is_indexed(self) -> bool:
        return all(s in self.indexed for s in self._shares())

    def _loaders(self, *_: Any) -> LoaderAddresses:
        latest = {r.name: r for r in self.received["/v1/register"] if r.role == "loader"}
        return LoaderAddresses(tuple(LoaderAddress(r.name, r.host, r.port, r.instance) for r in latest.values()))

    def _blocks(self, query: dict[str, str], _: None) -> SourceBlocks | None:
        mine = [s for s in self._shares() if s.source == query["source"]]
        if not all(s in self.indexed and not self.indexed[s].fault for s in mine):
            return None
        blocks = tuple(sorted(b for s in mine for b in self.indexed[s].blocks))
        return SourceBlocks(query["source"], blocks, len(blocks))

    def _plans(self, query: dict[str, str], _: None) -> StepPlans | None:
        steps = range(max(self.forgotten, int(query["from"])), STEPS)[:8]
        plans = tuple(plan_of(self.corpus, self.generation, s, self.replicas) for s in steps)
        return StepPlans(plans) if plans else None

    def _serve(self, _: dict[str, str], body: DeliveredDigests) -> Ack:
        self.served[body.step] |= dict(body.digests)
        return Ack("one", 0)


@dataclass
class DataPlane:
    """Processes of one job, each with its own loopback address, so that ports need not change."""

    corpus: Corpus
    folder: Path
    coordinator: CorpusCoordinator
    children: dict[str, Child] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = field(default_factory=itertools.count().__next__)  # of the planes that this test process has made

    def start_loader(self, index: int) -> Child:
        return self._start("coxswain_data.loader", f"loader-{index}", 1 + index)

    def start_constructor(self, trainer: int) -> Child:
        return self._start("coxswain_data.constructor", f"trainer-{trainer}", 11 + trainer)

    def address(self, host: int) -> str:
        pid = os.getpid()
        return f"127.{128 + (pid >> 8 & 63)}.{pid & 255}.{self.number % 8 * 30 + host}"

    def worker(self, trainer: int) -> Handover:
        return Handover(names.constructor_socket(f"{self.prefix}-trainer-{trainer}"), TOKEN)

    def receive(self, step: int, deadline: float = 60.0) -> dict[int, StepArrays]:
        """The arrays of every rank of the current world."""
        out = {}
        for seat in self.coordinator.world().seats:
            with self.worker(seat.device.trainer) as worker:
                out[seat.rank] = worker.receive(self.coordinator.generation, step, seat.rank, deadline)
        return out

    def _start(self, module: str, name: str, host: int) -> Child:
        env = os.environ | {
            names.ENV_NAME: name, names.ENV_INDEX: name.rpartition("-")[2], names.ENV_COORDINATOR: self.coordinator.url,
            names.ENV_JOB_DIR: str(self.folder), names.ENV_TOKEN_DIR: str(self.folder), names.ENV_POD_NAME: f"{name}-0",
            names.ENV_POD_IP: self.address(host), names.ENV_POD_UID: f"{self.prefix}-{name}", "OMP_NUM_THREADS": "1",
            names.ENV_TERMINATION_LOG: str(self.folder / f"{name}.termination"),
        }  # fmt: skip
        self.children[name] = Child([sys.executable, "-m", module], self.folder / f"{name}.log", env)
        return self.children[name]


@contextmanager
def data_plane(
    folder: Path, loaders: int = 1, trainers: int = 1, devices: int = 1, without: tuple[str, ...] = ()
) -> Iterator[DataPlane]:
    """Starts loaders and constructors; the coordinator has no world yet. `without`: missing sources."""
    corpus = write_corpus(folder / "corpus")
    for name in without:
        shutil.rmtree(folder / "corpus" / name)
    coordinator = CorpusCoordinator(corpus, loaders, trainers, devices)
    (folder / "job.json").write_bytes(msgspec.json.encode(job_of(corpus, folder / "runs", loaders)))
    (folder / "token").write_text(TOKEN + "\n")
    coordinator.start()
    plane = DataPlane(corpus, folder, coordinator)
    try:
        for i in range(loaders):
            plane.start_loader(i)
        for i in range(trainers):
            plane.start_constructor(i)
        yield plane
    finally:
        for child in plane.children.values():
            child.stop()
        coordinator.stop()


def check(plane: DataPlane, step: int, got: dict[int, StepArrays]) -> None:
    """Checks that every token of the step is there once, with its position and label."""
    tokens: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for arrays in got.values():
        for s in arrays.slices:
            for position, offset in zip(
                range(s.start, s.stop), range(s.offset, s.offset + s.stop - s.start), strict=True
            ):
                assert arrays.positions[offset] == position
                assert position not in tokens[s.sequence]
                tokens[s.sequence][position] = (int(arrays.tokens[offset]), int(arrays.labels[offset]))
    for place, sequence in enumerate(sequences_of(plane.corpus, step)):
        whole = plane.corpus.ids(msgspec.structs.replace(sequence, start=0, stop=sequence.length))
        after = [*whole[1:], -100]
        expected = list(zip(whole, after, strict=True))[sequence.start : sequence.stop]
        assert [tokens[place][i] for i in range(sequence.tokens)] == expected


def digests_of(corpus: Corpus, step: int) -> dict[int, str]:
    """The digests that a step must have, from the documents."""
    import numpy as np

    return {i: tokens_digest(np.array(corpus.ids(s))) for i, s in enumerate(sequences_of(corpus, step))}
