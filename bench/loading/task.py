"""What one rank of a system is asked to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loading.corpus import Corpus


@dataclass(frozen=True, slots=True)
class Task:
    """`documents` and `tokens` in a batch of one rank: which of them counts is the system's way. `state`: to go on behind."""

    corpus: Corpus
    folder: Path  # where `prepare` has written
    rank: int
    world: int
    workers: int  # processes of this rank that read and tokenize
    documents: int
    tokens: int
    state: dict[str, Any] | None
