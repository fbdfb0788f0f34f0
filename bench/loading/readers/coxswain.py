"""Coxswain's StreamDataset in torch's DataLoader: the JSON lines as they are; the mix of a job, no services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.loading.corpus import Corpus
from bench.loading.task import Task
from coxswain_train.dataset import StepBatch, StreamDataset

STEPS, LONGEST = 1_000_000, 8192


def objects(corpus: Corpus, tokens: int) -> list[dict[str, Any]]:
    """The sources and their mix, and a job over them."""
    group = {"apiVersion": "coxswain.dev/v1alpha1"}
    weights = zip(corpus.sources, corpus.weights(), strict=True)
    sources = [
        group | {"kind": "DataSource", "metadata": {"name": name}, "spec": {
            "uri": f"file://{corpus.folder}/sources/{name}/", "format": "Jsonl", "include": "**/*.jsonl", "textField": "text",
            "tokenizer": {"file": {"uri": f"file://{corpus.tokenizer}"}}}}
        for name in corpus.sources
    ]  # fmt: skip
    shares = [{"name": name, "sourceRef": {"name": name}, "weight": weight} for name, weight in weights]
    mix = {
        "kind": "DataMix",
        "metadata": {"name": "mix"},
        "spec": {"seed": 7, "sources": shares, "longSequences": "Split"},
    }
    longest = min(LONGEST, tokens)
    job = {"kind": "TrainingJob", "metadata": {"name": "loading"}, "spec": {
        "seed": 1, "model": {"preset": "llama-tiny"}, "mixRef": {"name": "mix"},
        "parallelism": {"mode": "Fixed", "hybridData": {"tokensPerReplica": longest, "maxDegree": 1}, "hardware": "cpu"},
        "batch": {"tokensPerStep": tokens, "maxSequenceTokens": longest}, "optimizer": {"learningRate": "1e-3"},
        "stop": {"steps": STEPS}, "trainers": {"count": 1, "devicesPerTrainer": 1},
        "checkpoint": {"uri": f"file://{corpus.folder}/checkpoints/"}}}  # fmt: skip
    return [*sources, group | mix, group | job]


def prepare(corpus: Corpus, folder: Path) -> None:
    """Indexes the sources, as the first start of a job does."""
    folder.mkdir(parents=True, exist_ok=True)
    _dataset(Task(corpus, folder, 0, 1, 0, 1, LONGEST, None))


def _dataset(task: Task) -> StreamDataset:
    file = task.folder / f"job-{task.rank}.yaml"  # each rank its own: another may be reading
    file.write_text("\n---\n".join(map(json.dumps, objects(task.corpus, task.tokens * task.world))))
    return StreamDataset.of_files([file], f"file://{task.folder}/index", rank=task.rank, world=task.world)


class Reader:
    def __init__(self, task: Task) -> None:
        data = _dataset(task)
        if task.state is not None:
            data.load_state_dict(task.state)
        self._loader = data.loader(task.workers)
        self._last: StepBatch | None = None

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        for batch in self._loader:
            self._last = batch
            yield [tokens.numpy() for tokens, _ in batch.sequences()]

    def state(self) -> Any:
        return self._last and self._last.state
