"""MosaicML Streaming: shards of MDS on local disk, a stream a source, shuffled with a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

from bench.loading.corpus import Corpus, Encoder
from bench.loading.task import Task


def prepare(corpus: Corpus, folder: Path) -> None:
    for source in corpus.sources:
        with MDSWriter(out=str(folder / source), columns={"text": "str"}) as out:
            for text in corpus.texts(source):
                out.write({"text": text})


class Texts(StreamingDataset):
    def __init__(self, encode: Encoder, **options: Any) -> None:
        super().__init__(**options)
        self._encode = encode

    def __getitem__(self, at: int) -> np.ndarray:
        return self._encode(super().__getitem__(at)["text"])


class Reader:
    def __init__(self, task: Task) -> None:
        weights, names = task.corpus.weights(), task.corpus.sources
        streams = [
            Stream(local=str(task.folder / n), proportion=w / sum(weights)) for n, w in zip(names, weights, strict=True)
        ]
        data = Texts(
            Encoder(task.corpus.tokenizer), streams=streams, batch_size=task.documents, shuffle=True, shuffle_seed=7,
            num_canonical_nodes=1,
        )  # fmt: skip
        self._loader = StreamingDataLoader(
            data, batch_size=task.documents, num_workers=task.workers, collate_fn=_named, persistent_workers=False
        )
        if task.state is not None:
            self._loader.load_state_dict(task.state)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        while True:  # epochs
            for batch in self._loader:
                yield batch["ids"]

    def state(self) -> Any:
        return self._loader.state_dict()


def _named(batch: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Its loader counts documents by the first value of a dictionary."""
    return {"ids": batch}
