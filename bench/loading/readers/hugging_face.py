"""Hugging Face datasets, streamed from the JSON lines as they are, in torchdata's StatefulDataLoader."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from bench.loading.corpus import Corpus, Encoder
from bench.loading.task import Task

BUFFER = 1000  # documents that a source's shuffle holds, its default


def prepare(corpus: Corpus, folder: Path) -> None:
    """It reads the corpus itself."""


class Reader:
    def __init__(self, task: Task) -> None:
        weights = task.corpus.weights()
        parts = [
            load_dataset("json", data_files=[str(f) for f in task.corpus.files(name)], split="train", streaming=True)
            .shuffle(seed=7, buffer_size=BUFFER)
            .repeat(None)
            for name in task.corpus.sources
        ]
        shares = [w / sum(weights) for w in weights]
        mixed = interleave_datasets(parts, probabilities=shares, seed=7, stopping_strategy="first_exhausted")
        mine = split_dataset_by_node(mixed, task.rank, task.world)
        collate = partial(_encode, Encoder(task.corpus.tokenizer))
        self._loader = StatefulDataLoader(mine, batch_size=task.documents, num_workers=task.workers, collate_fn=collate)
        if task.state is not None:
            self._loader.load_state_dict(pickle.loads(base64.b64decode(task.state["pickle"])))

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return iter(self._loader)

    def state(self) -> Any:
        return {"pickle": base64.b64encode(pickle.dumps(self._loader.state_dict())).decode()}


def _encode(encode: Encoder, rows: list[dict[str, str]]) -> list[np.ndarray]:
    return [encode(row["text"]) for row in rows]
