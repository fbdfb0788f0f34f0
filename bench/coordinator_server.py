"""The coordinator of `bench.coordinator`: over a local folder, with a generated index. Prints its port, at SIGTERM its lags."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
from coxswain.index import BlockEntry, BlockIndex, encode, object_key
from coxswain.plan.lengths import draw_lengths
from coxswain_coordinator.__main__ import prepare
from coxswain_coordinator.coordinator import Coordinator
from coxswain_coordinator.planning.placers import place_step
from coxswain_link.store import open_store

TOKEN = "bench"
K = 1024
MEAN_TOKENS = 2400  # of a sequence of the GitHub set
LOOK = 0.02  # seconds between two looks at the clock of the loop


@dataclass(frozen=True)
class Shape:
    """`steps` are measured, after two that warm up."""

    ranks: int
    devices: int  # of a trainer
    sequences: int  # of a step, about
    steps: int
    step_seconds: float

    @property
    def trainers(self) -> int:
        return self.ranks // self.devices

    @property
    def context(self) -> int:
        """Tokens of the longest sequence: at most what all replicas hold."""
        return min(256 * K, 8 * K * self.ranks)

    @property
    def blocks(self) -> int:
        """Enough for the steps, and as many again for the look-ahead."""
        return 2 * (self.steps + 12)


def job_of(shape: Shape, folder: Path) -> JobConfig:
    source = SourceConfig(
        name="code", source="code", uri="file:///code", format="Text", include="*", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=1000,
    )  # fmt: skip
    return JobConfig(
        name="bench", namespace="default", uid="u", seed=1,
        model=ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, feed_forward=14336),
        mix=MixConfig(name="mix", seed=7, sources=(source,)),
        parallelism=ParallelConfig(tokens_per_replica=8 * K, max_degree=64, hardware="h100-80g"),
        batch=BatchConfig(tokens_per_step=MEAN_TOKENS * shape.sequences, max_sequence_tokens=shape.context),
        optimizer=OptimizerConfig(learning_rate=1e-3), stop_steps=10**6, trainers=shape.trainers,
        devices_per_trainer=shape.devices, min_trainers=1, loaders=1,
        checkpoint=CheckpointConfig(uri=f"file://{folder}/store", every_steps=0),
    )  # fmt: skip


def lengths_of(shape: Shape, block: int) -> NDArray[np.uint32]:
    found = draw_lengths("github", context=shape.context, tokens=MEAN_TOKENS * shape.sequences, seed=block)
    return np.maximum(found, 2).astype(np.uint32)


@cache
def entries(shape: Shape) -> tuple[BlockEntry, ...]:
    lengths = [lengths_of(shape, b) for b in range(shape.blocks)]
    return tuple(
        BlockEntry(f"part-{b:04d}", 0, 0, 1, 1, "e", samples=len(x), tokens=int(x.sum()), key=f"{b:04d}")
        for b, x in enumerate(lengths)
    )


async def serve(shape: Shape, folder: Path, block: float) -> None:
    job = job_of(shape, folder)
    store = open_store(job.checkpoint.uri, create=True)
    for number, entry in enumerate(entries(shape)):
        lengths = lengths_of(shape, number)
        store.put(object_key(entry.key), encode(BlockIndex(np.arange(len(lengths)), lengths, np.zeros(0))))
    coordinator = Coordinator(job, store, TOKEN, place_step, "bench", folder, time.time)
    port = await coordinator.start("127.0.0.1", 0)
    lags: list[tuple[float, float]] = []
    work = [asyncio.create_task(coordinator.drive()), asyncio.create_task(watch(lags))]
    work += [asyncio.create_task(pause(shape.step_seconds, block))] if block else []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work[0].cancel)
    print(port, flush=True)
    await asyncio.wait({work[0]})
    for task in work:
        task.cancel()
    print(json.dumps(lags), flush=True)
    if not work[0].cancelled():
        work[0].result()


async def watch(lags: list[tuple[float, float]]) -> None:
    """Notes by how much a short sleep is too long: (monotonic time, seconds)."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(LOOK)
        lags.append((began, time.monotonic() - began - LOOK))


async def pause(step_seconds: float, seconds: float) -> None:
    """Stops the loop once a step."""
    while True:
        await asyncio.sleep(step_seconds)
        time.sleep(seconds)  # noqa: ASYNC251  that is its purpose


if __name__ == "__main__":
    prepare()
    asyncio.run(serve(Shape(**json.loads(sys.argv[2])), Path(sys.argv[1]), float(sys.argv[3])))
