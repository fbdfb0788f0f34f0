"""The least: one process reads the files in turn and tokenizes. No shuffle, no workers, no state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.loading.corpus import Corpus, Encoder
from bench.loading.task import Task


def prepare(corpus: Corpus, folder: Path) -> None:
    """It reads the corpus itself."""


class Reader:
    def __init__(self, task: Task) -> None:
        self._task, self._encode = task, Encoder(task.corpus.tokenizer)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        mine = islice(self._documents(), self._task.rank, None, self._task.world)
        while batch := list(islice(mine, self._task.documents)):
            yield [self._encode(text) for text in batch]

    def _documents(self) -> Iterator[str]:
        while True:
            for source in self._task.corpus.sources:
                yield from self._task.corpus.texts(source)

    def state(self) -> Any:
        return None
