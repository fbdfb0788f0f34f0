"""One rank's part of a step, as `StreamDataset` gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coxswain import digests
from coxswain.membership.values import Sequence as Piece


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One rank's part of a step: its sequences, one after the other.

    `tokens`, `labels` (-100: none) and `positions` (in the sequence) are int64 [n]; sequence i is rows bounds[i] to
    bounds[i + 1] and attends to nothing else. Divide the sum of the token losses by `total_labels`. Workers of a DataLoader
    send it as one tensor, of which the four are parts.
    """

    step: int
    membership: tuple[Piece, ...]  # of the whole step, in stream order
    mine: tuple[int, ...]  # which of them this rank has
    tokens: Tensor
    labels: Tensor
    positions: Tensor
    bounds: Tensor  # [sequences + 1]
    digests: tuple[str, ...]  # SHA-256 of the tokens of each of mine
    state: dict[str, Any]  # after this step, for load_state_dict; the same on all ranks

    @property
    def total_labels(self) -> int:
        """Of all ranks. A step of ends alone has no label and its loss is 0: 1, which can be divided by."""
        return max(1, sum(s.labels for s in self.membership))

    @property
    def delivered_digest(self) -> int:
        """This rank's part: those of all ranks add up (modulo 2^64) to the step's."""
        total = 0
        for index, start, stop in zip(self.mine, self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            rows = slice(start, stop)
            part = digests.delivered(index, self.positions[rows].numpy(), self.tokens[rows].numpy())
            total = digests.add(total, part)
        return total

    def sequences(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(tokens, labels) of each sequence, for models that take one at a time."""
        for start, stop in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.tokens[start:stop], self.labels[start:stop]

    def pin_memory(self) -> StepBatch:
        """The same in page-locked memory: a DataLoader calls it with `pin_memory=True`."""
        return replace(self, **{name: getattr(self, name).pin_memory() for name in _TENSORS})

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, where each tensor comes as an open file of its own: that takes longer than to join them."""
        joined = torch.cat([getattr(self, name) for name in _TENSORS])
        return _parted, (self.step, self.membership, self.mine, joined, self.digests, self.state)


_TENSORS = "tokens", "labels", "positions", "bounds"


def _parted(
    step: int,
    membership: tuple[Piece, ...],
    mine: tuple[int, ...],
    joined: Tensor,
    names: tuple[str, ...],
    state: dict[str, Any],
) -> StepBatch:
    rows = (len(joined) - len(mine) - 1) // 3
    tokens, labels, positions, bounds = torch.split(joined, [rows, rows, rows, len(mine) + 1])
    return StepBatch(step, membership, mine, tokens, labels, positions, bounds, names, state)
