"""A data plane for tests: a corpus of known documents, a fake coordinator, and loaders and
constructors as real processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from coxswain import config, names
from coxswain.digests import tokens_digest
from coxswain.layout import Device, uniform_layout
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.planlog import LoaderShare
from coxswain.wire import (
    Ack,
    DeliveredDigests,
    Finished,
    Heartbeat,
    Indexed,
    LoaderAddress,
    LoaderAddresses,
    Register,
    Registered,
    Shares,
    SourceBlocks,
    StepPlan,
    StepPlans,
    World,
)
from coxswain_link.handover import Handover
from coxswain_link.http_client import JobEnded
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_link.step_buffer import StepArrays
from tests.children import Child

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
    """Source `code` in Parquet with row groups of five documents, `docs` in several Jsonl files;
    long-tailed lengths.
    """
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
    """A step's membership: whole samples and pieces of long ones, the same for any number of
    anything.
    """
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


@dataclass
class FakeCoordinator:
    """The calls that loaders and constructors make, in a thread of its own, with plans for STEPS
    steps.
    """

    corpus: Corpus
    loaders: int
    trainers: int = 1
    devices: int = 1
    url: str = ""
    generation: int = 0
    replicas: int = 0
    finished: Finished | None = None
    forgotten: int = 0  # steps below it are closed and their plans gone
    addresses: dict[str, LoaderAddress] = field(default_factory=dict)
    indexed: dict[LoaderShare, Indexed] = field(default_factory=dict)
    served: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    registrations: list[Register] = field(default_factory=list)

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._run(self._serve())}"

    def stop(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def begin(self, replicas: int) -> int:
        """The next generation, of so many replicas over all devices in turn."""
        return self._run(self._begin(replicas))

    def end(self, finished: Finished) -> None:
        self._run(self._set(finished=finished))

    def forget_before(self, step: int) -> None:
        self._run(self._set(forgotten=step))

    def await_served(self, step: int, deadline: float = 30.0) -> dict[int, str]:
        """Digests of a step by the sequence's position, once all have come."""
        everything = len(sequences_of(self.corpus, step))
        self._run(self._until(lambda: len(self.served[step]) == everything, deadline))
        return self.served[step]

    def await_registrations(self, role: str, count: int, deadline: float = 30.0) -> None:
        """Waits until so many instances of a role have registered since the beginning."""
        self._run(
            self._until(lambda: len({r.instance for r in self.registrations if r.role == role}) >= count, deadline)
        )

    def world(self) -> World:
        devices = [Device(i // self.devices, i % self.devices) for i in range(self.replicas)]
        layout = uniform_layout(devices, 1)
        trainers = tuple(f"trainer-{i}" for i in range(self.trainers))
        return World(self.generation, 0, layout, layout.ranks(), trainers, tuple(self._shares()))

    def _shares(self) -> list[LoaderShare]:
        return [
            LoaderShare(f"loader-{i}", s, i, self.loaders) for s in self.corpus.documents for i in range(self.loaders)
        ]

    def _is_indexed(self) -> bool:
        return all(s in self.indexed for s in self._shares())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self) -> int:
        self._service = HttpService(TOKEN, lambda: self.generation, build("coordinator"))
        for method, path, handler, body in (
            ("POST", "/v1/register", self._register, Register), ("GET", "/v1/shares", self._get_shares, None),
            ("POST", "/v1/indexed", self._post_indexed, Indexed), ("GET", "/v1/blocks", self._get_blocks, None),
            ("GET", "/v1/world", self._get_world, None), ("GET", "/v1/loaders", self._get_loaders, None),
            ("GET", "/v1/plans", self._get_plans, None), ("POST", "/v1/served", self._post_served, DeliveredDigests),
            ("POST", "/v1/beats", self._post_beat, Heartbeat),
        ):  # fmt: skip
            self._service.route(method, path, handler, body)
        return await self._service.start("127.0.0.1", 0)

    async def _close(self) -> None:
        await self._service.stop()
        polls = asyncio.all_tasks() - {asyncio.current_task()}
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _set(self, **values: Any) -> None:
        async with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self._changed.notify_all()

    async def _begin(self, replicas: int) -> int:
        await self._set(generation=self.generation + 1, replicas=replicas)
        return self.generation

    async def _until(self, true: Callable[[], bool], seconds: float) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(true), seconds)

    async def _poll(self, request: Any, there: Callable[[], bool]) -> bool:
        try:
            await self._until(there, float(request.query.get("wait", 0)) or 0.001)
        except TimeoutError:
            return False
        return True

    async def _register(self, _: Any, body: Register) -> Registered:
        async with self._changed:
            self.registrations.append(body)
            if body.role == "loader":
                self.addresses[body.name] = LoaderAddress(body.name, body.host, body.port, body.instance)
            self._changed.notify_all()
        return Registered(self.generation if self._is_indexed() else 0)

    async def _get_shares(self, request: Any, _: None) -> Shares:
        return Shares(tuple(s for s in self._shares() if s.loader == request.query["loader"]))

    async def _post_indexed(self, _: Any, body: Indexed) -> None:
        async with self._changed:
            self.indexed[body.share] = body
            self._changed.notify_all()

    async def _get_blocks(self, request: Any, _: None) -> SourceBlocks | None:
        mine = [s for s in self._shares() if s.source == request.query["source"]]
        if not await self._poll(request, lambda: all(s in self.indexed and not self.indexed[s].fault for s in mine)):
            return None
        return SourceBlocks(request.query["source"], tuple(sorted(b for s in mine for b in self.indexed[s].blocks)))

    async def _get_world(self, request: Any, _: None) -> World | None:
        after = int(request.query["after"])
        there = lambda: (self.generation > after and self._is_indexed()) or self.finished is not None  # noqa: E731
        if not await self._poll(request, there):
            return None
        if self.finished is not None:
            raise JobEnded(self.finished)
        return self.world()

    async def _get_loaders(self, _: Any, __: None) -> LoaderAddresses:
        return LoaderAddresses(tuple(self.addresses.values()))

    async def _get_plans(self, request: Any, _: None) -> StepPlans | None:
        steps = range(max(self.forgotten, int(request.query["from"])), STEPS)[:8]
        if not steps:
            await self._poll(request, lambda: False)
            return None
        return StepPlans(tuple(plan_of(self.corpus, self.generation, s, self.replicas) for s in steps))

    async def _post_served(self, _: Any, body: DeliveredDigests) -> Ack:
        async with self._changed:
            self.served[body.step] |= dict(body.digests)
            self._changed.notify_all()
        return Ack("one", 0)

    async def _post_beat(self, _: Any, __: Heartbeat) -> Ack:
        return Ack("one", 0)


@dataclass
class DataPlane:
    """Processes of one job, each with a loopback address of its own, so that the ports stay what
    they are.
    """

    corpus: Corpus
    folder: Path
    coordinator: FakeCoordinator
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
        """What every rank of the current world gets for a step."""
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
    """Loaders and constructors of a job, started; the coordinator has no world yet.

    `without`: sources that are not there.
    """
    corpus = write_corpus(folder / "corpus")
    for name in without:
        shutil.rmtree(folder / "corpus" / name)
    coordinator = FakeCoordinator(corpus, loaders, trainers, devices)
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
    """Every token of the step is there once, under its right place, with its right label."""
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
