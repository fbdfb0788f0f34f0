"""A made-up run for the tests of the report: the files that a work directory holds."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import msgspec

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
from coxswain.uris import file_uri

BEGAN = 1_800_000_000.0


def job(**changes: Any) -> JobConfig:
    config = JobConfig(
        name="stdlib", namespace="default", uid="u", seed=1,
        model=ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, feed_forward=256),
        mix=MixConfig(name="mix", seed=7, sources=(source("code", 700), source("docs", 300))),
        parallelism=ParallelConfig(), batch=BatchConfig(tokens_per_step=16384, max_sequence_tokens=8192),
        optimizer=OptimizerConfig(learning_rate=1e-3), stop_steps=60, trainers=4, devices_per_trainer=1, min_trainers=4,
        loaders=2, checkpoint=CheckpointConfig(uri="file:///tmp/checkpoints"),
    )  # fmt: skip
    return msgspec.structs.replace(config, **changes)


def job_of(folder: Path) -> JobConfig:
    """The job of a work directory, with its checkpoints there."""
    return job(checkpoint=CheckpointConfig(uri=file_uri(folder / "checkpoints")))


def source(name: str, weight: int) -> SourceConfig:
    return SourceConfig(
        name=name, source=name, uri="file:///data/", format="Jsonl", include="**/*", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=weight,
    )  # fmt: skip


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    dice = random.Random(step)
    tokens = 16384 + dice.randrange(4000)
    code = int(tokens * min(1, max(0, 0.7 + dice.gauss(0, 0.2) / (1 + step / 10))))
    line = {
        "step": step, "worldGeneration": 1 if step < 25 else 2, "tokens": tokens, "sequences": dice.randrange(6, 30),
        "loss": 3 + 5.3 * math.exp(-step / 12) + dice.gauss(0, 0.12), "stream_digest": f"{step:064x}",
        "delivered_digest": f"{step:016x}", "seconds": 1.6 + 0.5 * dice.random() + (2 if step == 0 else 0),
        "idle_fraction": 0.05 + 0.15 * dice.random(), "makespan_over_bound": 1 + 0.2 * dice.random(),
        "gradient_norm": 1.0, "learning_rate": 1e-3, "tokens_by_source": {"code": code, "docs": tokens - code},
        "data_wait_seconds": 0.02 * dice.random(), "time": BEGAN + 10 + 2 * step,
    }  # fmt: skip
    return line | changes


def write_run(folder: Path, steps: int = 60, ranks: int = 4) -> Path:
    """A finished job's work directory."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "steps.jsonl", [step_line(k) for k in range(steps)])
    write_lines(folder / "timings.jsonl", [timing_line(k, ranks) for k in range(steps)])
    write_lines(folder / "events.jsonl", events(steps))
    (folder / "checkpoints").mkdir(exist_ok=True)
    write_object(folder, "ConfigMap", "stdlib", {"data": {"job.json": msgspec.json.encode(job_of(folder)).decode()}})
    write_object(folder, "TrainingJob", "stdlib", {"status": status(steps)})
    return folder


def events(steps: int) -> list[dict[str, Any]]:
    what = [
        (0, "Validated", "the specification is sound"),
        (1, "IndexingStarted", "2 sources over 2 loaders"),
        (6, "GangStarted", "4 of 4 trainers are there"),
        (8, "TrainingStarted", "world generation 1: 4 x tp1pp1"),
        (50, "CheckpointSaved", "step 20"),
        (58, "WorkerRestarted", "worker 2 of generation 1 ended with signal 9"),
        (10 + 2 * steps, "Completed", f"step {steps} of {steps} reached"),
    ]
    return [{"time": BEGAN + at, "reason": r, "message": m, "object": "TrainingJob/stdlib"} for at, r, m in what]


def status(steps: int) -> dict[str, Any]:
    done = {"type": "Succeeded", "status": "True", "reason": "Completed", "message": f"StopReached at step {steps}"}
    saved = {"step": steps, "uri": "file:///tmp/checkpoints/manifests/step-0000000060.json", "time": ""}
    return {"conditions": [done], "lastCheckpoint": saved, "restarts": {"counted": 1, "ignored": 0}}


def write_object(folder: Path, kind: str, name: str, content: dict[str, Any]) -> None:
    path = folder / "cluster" / kind / "default" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": kind, "metadata": {"name": name}} | content))


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def timing_line(step: int, ranks: int = 4) -> dict[str, Any]:
    """Rings and packs, planned without a gap, measured with some noise and waits."""
    dice = random.Random(step)
    free = [0.0] * ranks
    planned: list[dict[str, Any]] = []
    for index in range(2 * ranks):
        degree = dice.choice([1, 1, 2, min(4, ranks)])
        members = sorted(sorted(range(ranks), key=lambda r: free[r])[:degree])
        start, length = max(free[r] for r in members), 0.15 + 0.3 * dice.random()
        for r in members:
            free[r] = start + length
        kind, sequences = ("pack", [3, 4, 9]) if degree == 1 else ("ring", [30 - index])
        task = {"task": index, "kind": kind, "replicas": members, "start": start, "stop": start + length}
        planned.append(task | {"sequences": sequences, "tokens": 1024 * degree})
    return {"step": step, "planned": planned, "ranks": [_rank_line(r, planned, dice) for r in range(ranks)]}


def _rank_line(rank: int, planned: list[dict[str, Any]], dice: random.Random) -> dict[str, Any]:
    now, operations = 0.03, []
    for task in planned:
        if rank in task["replicas"]:
            begin = max(now, task["start"] * 1.1)
            middle = begin + (task["stop"] - task["start"]) * 0.35
            now = middle + (task["stop"] - task["start"]) * (0.7 + 0.1 * dice.random())
            waited = 0.04 * dice.random() if task["kind"] == "ring" else 0.0
            operations += [[task["task"], "F", begin, middle, waited], [task["task"], "B", middle, now, waited]]
    return {
        "rank": rank, "replica": rank, "trainer": rank // 2, "timings": operations, "seconds": now + 0.1, "data_wait": 0.02,
        "compute": now * 0.9, "reduce": 0.06,
    }  # fmt: skip
