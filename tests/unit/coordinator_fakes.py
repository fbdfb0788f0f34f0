"""A whole job in memory: the real coordinator over HTTP; tasks stand in for its services."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from coxswain import digests, wire
from coxswain.config import (
    BatchConfig,
    CheckpointConfig,
    JobConfig,
    MixConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SourceConfig,
    TokenizerConfig,
)
from coxswain.errors import Stale
from coxswain.index import BlockEntry, BlockIndex, encode, object_key
from coxswain.membership.values import Sequence
from coxswain_cli.kept_steps import kept_steps
from coxswain_coordinator.coordinator import Coordinator
from coxswain_coordinator.planning.mix_edits import Edits
from coxswain_coordinator.planning.placers import Planner, place_step
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.store import Store, open_store

TOKEN = "secret"
BLOCKS, SAMPLES = 6, 20


def make_source(name: str, weight: int, max_passes: int = 0) -> SourceConfig:
    return SourceConfig(
        name=name, source=name, uri=f"file:///{name}", format="Text", include="*", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=weight, max_passes=max_passes,
    )  # fmt: skip


def make_job(folder: Path, **changes: object) -> JobConfig:
    job = JobConfig(
        name="demo", namespace="default", uid="u1", seed=1,
        model=ModelConfig(layers=2, hidden=32, heads=2, kv_heads=1, feed_forward=64),
        mix=MixConfig(name="mix", seed=7, sources=(make_source("code", 700), make_source("docs", 300))),
        parallelism=ParallelConfig(tokens_per_replica=256, max_degree=4),
        batch=BatchConfig(tokens_per_step=512, max_sequence_tokens=256),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        stop_steps=20, trainers=2, devices_per_trainer=1, min_trainers=1, loaders=1,
        checkpoint=CheckpointConfig(uri=f"file://{folder}/store", every_steps=6),
    )  # fmt: skip
    return msgspec.structs.replace(job, **changes)


@cache
def block_of(source: str, ordinal: int) -> BlockEntry:
    lengths = lengths_of(source, ordinal)
    return BlockEntry(
        f"part-{ordinal:02d}.txt", 0, 0, 1000, 1000, "etag", samples=SAMPLES, tokens=int(lengths.sum()),
        key=f"{source}{ordinal}",
    )  # fmt: skip


def lengths_of(source: str, ordinal: int) -> np.ndarray:
    rng = np.random.default_rng([ordinal, len(source), ord(source[0])])
    return rng.integers(2, 120, SAMPLES).astype(np.uint32)


def tokens_of(s: Sequence) -> np.ndarray:
    rng = np.random.default_rng([s.index, ord(s.source[0])])
    return rng.integers(0, 256, s.length)[s.start : s.stop].astype(np.uint32)


@dataclass
class Cluster:
    """One coordinator and its services. `crashes`: how often a worker fails at a (rank, step)."""

    job: JobConfig
    folder: Path
    coordinator: Coordinator
    client: AsyncClient
    port: int
    crashes: dict[tuple[int, int], int] = field(default_factory=dict)
    instance: str = "one"
    incarnations: dict[str, int] = field(default_factory=dict)  # of members whose pod was replaced

    async def play(self) -> wire.JobReport:
        """Runs everything to the end and returns the final report."""
        async with asyncio.TaskGroup() as group:
            services = [self.loader(i) for i in range(self.job.loaders)]
            for i in range(self.job.trainers):
                services += [self._constructor(i), self._agent(i)]
            for service in services:
                group.create_task(service)
            await self.coordinator.drive()
        return self.coordinator.report()

    async def play_until(self, step: int) -> wire.World:
        """Runs everything until there is a checkpoint of this step, and ends all at once. Returns the first world."""
        running = asyncio.create_task(self.play())
        world = await self._worlds(after=0)
        assert await self.coordinator.wait_until(lambda report: report.checkpoint_step >= step, 60)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return world

    async def register(self, role: str, name: str, devices: int = 0) -> None:
        pod, instance = f"demo-{name}-{self.incarnations.get(name, 0)}", self.instance_of(role, name)
        member = wire.Register(role, name, pod, instance, "127.0.0.1", 7, devices)
        await self.client.post("/v1/register", member, wire.Registered)

    def instance_of(self, role: str, name: str) -> str:
        return f"{role}-{name}-{self.instance}-{self.incarnations.get(name, 0)}"

    @contextlib.asynccontextmanager
    async def until_end(self, role: str, name: str) -> AsyncIterator[None]:
        """Leaves at the end of the job and acknowledges it as the service: the coordinator waits for that for some seconds."""
        try:
            yield
        except JobEnded:
            instance = self.instance_of(role, name)
            with contextlib.suppress(JobEnded):
                await self.client.get("/v1/world", wire.World, after=0, wait=0, instance=instance)

    async def loader(self, index: int) -> None:
        async with self.until_end("loader", f"loader-{index}"):
            await self.register("loader", f"loader-{index}")
            shares = await self.client.get("/v1/shares", wire.Shares, loader=f"loader-{index}", wait=30)
            for share in shares.shares:
                blocks = tuple(block_of(share.source, b) for b in range(BLOCKS))[share.share :: share.shares]
                await self.client.post("/v1/indexed", wire.Indexed(share, blocks, "tokenizer", 257))
            await self._worlds(after=1 << 30)

    async def _worlds(self, after: int) -> wire.World:
        while (world := await self.client.get("/v1/world", wire.World, after=after, wait=30)) is None:
            pass
        return world

    async def _constructor(self, index: int) -> None:
        """Delivers all sequences whose first token lies on a replica of its trainer."""
        async with self.until_end("constructor", f"trainer-{index}"):
            await self.register("constructor", f"trainer-{index}")
            generation = 0
            while True:
                world = await self._worlds(generation)
                generation = world.generation
                with contextlib.suppress(Stale):
                    await self.deliver(world, index)

    async def deliver(self, world: wire.World, index: int) -> None:
        step = world.first_step
        mine = {s.replica for s in world.seats if s.device.trainer == index}
        while True:
            plans = await self.client.get(
                "/v1/plans", wire.StepPlans, generation=world.generation, **{"from": step}, wait=30
            )
            for plan in plans.plans if plans else ():
                first = {s.sequence for t in plan.tasks for s in t.slices if s.start == 0 and s.replica in mine}
                served = tuple((i, digests.tokens_digest(tokens_of(plan.sequences[i]))) for i in sorted(first))
                body = wire.DeliveredDigests(world.generation, plan.step, served)
                await self.client.post("/v1/served", body, generation=world.generation)
                step = plan.step + 1

    async def _agent(self, index: int) -> None:
        name = f"trainer-{index}"
        workers: list[asyncio.Task[None]] = []
        generation = 0
        try:
            async with self.until_end("trainer", name):
                while True:
                    await self.register("trainer", name, self.job.devices_per_trainer)
                    world = await self.client.get("/v1/world", wire.World, after=generation, wait=5)
                    if world is None:
                        continue
                    await _cancel(workers)
                    generation = world.generation
                    seats = [s for s in world.seats if s.device.trainer == index]
                    workers = [asyncio.create_task(self.worker(world, s, name)) for s in seats]
            await asyncio.gather(*workers)
        finally:
            await _cancel(workers)

    async def worker(self, world: wire.World, seat, name: str) -> None:
        g, step = world.generation, world.first_step
        code = 1
        with contextlib.suppress(Stale, JobEnded):
            while True:
                directive = await self.client.get("/v1/steps", wire.StepDirective, generation=g, step=step, wait=30)
                if directive is None or (not directive.end and directive.plan is None):
                    await asyncio.sleep(0.01)
                    continue
                if directive.checkpoint:
                    await self._save(world, seat.rank, step)
                if directive.end:
                    code = 0 if directive.end == "Completed" else 3
                    break
                if self.crashes.get((seat.rank, step), 0) > 0:
                    self.crashes[seat.rank, step] -= 1
                    code = -9
                    break
                await self.client.post("/v1/reports", report_of(directive.plan, seat.rank, seat.replica), generation=g)
                step += 1
        await self.client.post("/v1/exits", wire.WorkerExit(g, name, seat.device.device, seat.rank, code))

    async def _save(self, world: wire.World, rank: int, step: int) -> None:
        key, data = f"shards/{step}-{rank}.safetensors", b"x" * 10
        self.store.put(key, data)
        shard = wire.Shard(key, len(data), (), ())
        body = wire.ShardsSaved(world.generation, step, rank, len(world.seats), (shard,), 0.1)
        await self.client.post("/v1/saved", body, generation=world.generation)

    @property
    def store(self) -> Store:
        return store_of(self.job)

    def steps(self) -> dict[int, wire.StepLine]:
        """The last valid line of each step."""
        lines = (self.folder / "steps.jsonl").read_text().splitlines()
        return {line.step: line for line in (msgspec.json.decode(text, type=wire.StepLine) for text in lines)}

    def digests(self) -> list[tuple[str, str]]:
        return [(line.stream_digest, line.delivered_digest) for _, line in sorted(self.steps().items())]


def report_of(plan: wire.StepPlan, rank: int, replica: int) -> wire.StepReport:
    delivered, loss = 0, 0.0
    for task in plan.tasks:
        for s in task.slices:
            if s.replica == replica:
                tokens = tokens_of(plan.sequences[s.sequence])[s.start : s.stop]
                positions = np.arange(s.start, s.stop)
                delivered = digests.add(delivered, digests.delivered(s.sequence, positions, tokens))
                loss += s.stop - s.start
    return wire.StepReport(plan.generation, plan.step, rank, loss, delivered, 1.0, 1e-3, 0.5, 0.4, 0.01, 0.05)


def stored_steps(store: Store) -> list[wire.StepLine]:
    """The step lines of a location that count: those that a later world has discarded stand there, too."""
    texts = (text for found in store.list("steps/") for text in store.get(found.path).splitlines())
    lines = (msgspec.json.decode(text, type=wire.StepLine) for text in texts)
    return kept_steps(sorted(lines, key=lambda line: line.worldGeneration))


def store_of(job: JobConfig) -> Store:
    store = open_store(job.checkpoint.uri, create=True)
    for source in job.mix.sources:
        for b in range(BLOCKS):
            store.put(object_key(f"{source.name}{b}"), encoded_index(source.name, b))
    return store


@cache
def encoded_index(source: str, ordinal: int) -> bytes:
    return encode(BlockIndex(np.arange(SAMPLES), lengths_of(source, ordinal), np.zeros(0)))


@contextlib.asynccontextmanager
async def cluster(
    job: JobConfig,
    folder: Path,
    token: str = TOKEN,
    instance: str = "one",
    edits: Edits = lambda: None,
    planner: Planner = place_step,
) -> AsyncIterator[Cluster]:
    """A coordinator on a port of the kernel's choice, and a client for it."""
    coordinator = Coordinator(job, store_of(job), TOKEN, planner, f"coordinator-{instance}", folder, time.time, edits)
    port = await coordinator.start("127.0.0.1", 0)
    client = AsyncClient(f"http://127.0.0.1:{port}", token, deadline=30)
    try:
        yield Cluster(job, folder, coordinator, client, port, instance=instance)
    finally:
        await client.close()
        await coordinator.stop()


async def digests_of(job: JobConfig, folder: Path) -> list[tuple[str, str]]:
    """By step, of a run to its end."""
    async with cluster(job, folder) as c:
        assert (await c.play()).phase == "Completed"
        return c.digests()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
