"""Grain: array records, a MapDataset a source, mixed by weights, shuffled as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from grain.sources import ArrayRecordDataSource

from bench.loading.corpus import Corpus, Encoder
from bench.loading.task import Task


def prepare(corpus: Corpus, folder: Path) -> None:
    for source in corpus.sources:
        writer = ArrayRecordWriter(str(folder / f"{source}.arrayrecord"), "group_size:1")
        for text in corpus.texts(source):
            writer.write(text.encode())
        writer.close()


class Reader:
    def __init__(self, task: Task) -> None:
        encode = Encoder(task.corpus.tokenizer)
        parts = [
            grain.MapDataset.source(ArrayRecordDataSource([str(task.folder / f"{name}.arrayrecord")]))
            .shuffle(seed=7)
            .repeat()
            for name in task.corpus.sources
        ]
        mixed = grain.MapDataset.mix(parts, weights=task.corpus.weights())
        mine = mixed[task.rank :: task.world].map(lambda raw: encode(raw.decode()))
        batches = mine.to_iter_dataset().batch(task.documents, batch_fn=list)
        self._batches = iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.workers)))
        if task.state is not None:
            self._batches.set_state(task.state)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return self._batches

    def state(self) -> Any:
        return json.loads(json.dumps(self._batches.get_state()))
