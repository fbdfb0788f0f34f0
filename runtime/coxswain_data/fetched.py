"""The slices that a trainer has fetched of the next steps, from one world generation to the next."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain_link.flight import SliceRequest

Tokens = NDArray[np.int32]


class Answer(NamedTuple):
    tokens: Tokens
    digest: str | None  # of the whole sequence; None: another slice has it


class Fetched:
    """Answers by step. What a plan of the next generation asks of a step again is there.

    A request names tokens by content, so its answer is the same in every generation. Thread-safe: a builder may end while the
    next one begins.
    """

    def __init__(self) -> None:
        self._steps: dict[int, Mapping[SliceRequest, Answer]] = {}
        self._lock = threading.Lock()

    def of(self, step: int) -> Mapping[SliceRequest, Answer]:
        with self._lock:
            return self._steps.get(step, {})

    def keep(self, step: int, answers: Mapping[SliceRequest, Answer], first: int) -> None:
        """In place of what there was of the step. Forgets the steps before `first`."""
        with self._lock:
            self._steps[step] = answers
            self._steps = {number: kept for number, kept in self._steps.items() if number >= first}
