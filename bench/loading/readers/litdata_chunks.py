"""LitData: chunks that its `optimize` writes, a StreamingDataset a source, combined by weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

from bench.loading.corpus import Corpus, Encoder
from bench.loading.task import Task


def prepare(corpus: Corpus, folder: Path) -> None:
    for source in corpus.sources:
        optimize(_text, list(corpus.texts(source)), str(folder / source), chunk_bytes="16MB", num_workers=1)


def _text(text: str) -> str:
    return text


class Reader:
    def __init__(self, task: Task) -> None:
        encode, weights = Encoder(task.corpus.tokenizer), task.corpus.weights()
        parts = [
            StreamingDataset(str(task.folder / name), shuffle=True, seed=7, transform=partial(_encode, encode))
            for name in task.corpus.sources
        ]
        shares = [w / sum(weights) for w in weights]
        mixed = CombinedStreamingDataset(parts, seed=7, weights=shares, iterate_over_all=False)
        self._loader = StreamingDataLoader(mixed, batch_size=task.documents, num_workers=task.workers, collate_fn=list)
        if task.state is not None:
            self._loader.load_state_dict(task.state)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        while True:  # epochs
            yield from self._loader

    def state(self) -> Any:
        return self._loader.state_dict()


def _encode(encode: Encoder, text: str) -> np.ndarray:
    return encode(text)
