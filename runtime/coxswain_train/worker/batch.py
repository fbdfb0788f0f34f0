"""A step's tokens from the constructor: checked against the plan, digested, put on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coxswain import digests
from coxswain.errors import Refused, Retryable
from coxswain.wire import StepPlan
from coxswain_link.step_buffer import Columns, StepArrays
from coxswain_train.engine.step import Batch, Part
from coxswain_train.model.loss import IGNORED

WHOLE = Columns()


def check(arrays: StepArrays, mine: Iterable[Part], vocabulary: int, columns: Columns = WHOLE) -> None:
    """Refuses arrays that are not the plan's. Retryable: the constructor may have built another generation's.

    `columns`: those that this rank's stage needs; the others must be empty.
    """
    planned = [(p.task.index, s.sequence, s.start, s.stop) for p in mine for s in p.slices]
    handed = [tuple(s[:4]) for s in arrays.slices]
    if handed != planned:
        raise Retryable(
            f"step {arrays.step}: the constructor handed over slices {handed[:4]}..., the plan has {planned[:4]}..."
        )
    count = sum(s[3] - s[2] for s in planned)
    needed = [count * columns.tokens, count * columns.labels, count]
    lengths = [len(arrays.tokens), len(arrays.labels), len(arrays.positions)]
    if lengths != needed:
        raise Retryable(
            f"step {arrays.step}: the constructor handed over {lengths} tokens, labels and positions, the plan has {needed}"
        )
    largest = max(int(x.max(initial=0)) for x in (arrays.tokens, arrays.labels))
    if largest >= vocabulary:
        raise Refused(
            "TokenOutOfVocabulary",
            f"step {arrays.step}: token id {largest}, model.vocabulary is {vocabulary}; "
            "it must be at least the tokenizer's size (0: take it from the tokenizer)",
        )


def trained_part(arrays: StepArrays, plan: StepPlan) -> StepArrays:
    """The arrays without those of an evaluation, which follow them."""
    slices = tuple(s for s in arrays.slices if plan.trains(s.sequence))
    rows = slice(sum(s.stop - s.start for s in slices))
    columns = {name: getattr(arrays, name)[rows] for name in ("tokens", "labels", "positions")}
    return replace(arrays, slices=slices, **columns)


def delivered(arrays: StepArrays) -> int:
    """The delivered digest of these arrays, which have tokens."""
    places = np.array([s.sequence for s in arrays.slices], np.uint64)
    counts = [s.stop - s.start for s in arrays.slices]  # slices are contiguous
    return digests.delivered(np.repeat(places, counts), arrays.positions, arrays.tokens)


def valid_labels(arrays: StepArrays) -> int:
    return int(np.count_nonzero(arrays.labels != IGNORED))


def load(arrays: StepArrays, device: torch.device) -> Batch:
    def put(column: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(column.astype(np.int64)).to(device)

    return Batch(tokens=put(arrays.tokens), labels=put(arrays.labels), positions=put(arrays.positions))
