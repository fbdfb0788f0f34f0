"""The training state that one worker process owns: master parameters and optimizer moments, named by boxes.

It outlives process groups, worlds and models. A change of layout makes another one, fills it, and keeps that instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from coxswain.boxes import Box

KINDS = ("parameter", "exp_avg", "exp_avg_sq")
Rooms = Mapping[Box, Sequence[Tensor]]
"""The tensors of each box, one a kind."""


class State:
    """The same boxes in the same order for each kind. Each has memory of its own, so that another State can take it over."""

    def __init__(self) -> None:
        self._boxes: tuple[Box, ...] = ()
        self._starts: list[int] = [0]  # of each box among all elements, and their number
        self._values: dict[str, dict[Box, Tensor]] = {}

    def hold(
        self, boxes: Sequence[Box], dtype: torch.dtype, device: torch.device, kinds: Sequence[str] = KINDS,
        make: Callable[..., Tensor] = torch.zeros, there: Rooms | None = None,
    ) -> None:  # fmt: skip
        """Makes room for these boxes, with zeros. Keeps memory and values where they are the same ones already.

        `make`: `torch.empty` where all values are filled. `there`: tensors that become those of their box, with their values.
        """
        if self._is(tuple(boxes), tuple(kinds), dtype, device):
            return
        self._values = {}  # first: both do not fit at one time
        self._boxes, self._starts = tuple(boxes), list(accumulate((box.elements for box in boxes), initial=0))
        for number, kind in enumerate(kinds):
            self._values[kind] = {
                box: there[box][number] if there and box in there else make(box.shape, dtype=dtype, device=device)
                for box in boxes
            }

    def _is(self, boxes: tuple[Box, ...], kinds: tuple[str, ...], dtype: torch.dtype, device: torch.device) -> bool:
        every = (values for held in self._values.values() for values in held.values())
        same = all((values.dtype, values.device) == (dtype, device) for values in every)
        return same and boxes == self._boxes and kinds == tuple(self._values)

    @property
    def order(self) -> tuple[Box, ...]:
        """Its boxes, in the order of what is packed."""
        return self._boxes

    def values(self, kind: str) -> list[Tensor]:
        """Of each box in order, in its shape."""
        return list(self._values[kind].values())

    def part(self, kind: str, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of all boxes one after the other; they are inside one box."""
        place = bisect_right(self._starts, start) - 1
        values = self._values[kind][self._boxes[place]].view(-1)
        return values[start - self._starts[place] : stop - self._starts[place]]

    def boxes(self) -> dict[str, dict[Box, Tensor]]:
        """By kind and box: the tensors themselves, to be filled, saved or sent."""
        return {kind: dict(values) for kind, values in self._values.items()}

    def rooms(self) -> dict[Box, list[Tensor]]:
        """By box, one tensor a kind."""
        return {box: [values[box] for values in self._values.values()] for box in self._boxes}

    def clear(self) -> None:
        """Sets every value to zero."""
        for held in self._values.values():
            for values in held.values():
                values.zero_()


def views(flat: Tensor, boxes: Sequence[Box]) -> list[tuple[Box, Tensor]]:
    """Each box's part of a packed buffer, in the box's shape."""
    parts = torch.split(flat, [box.elements for box in boxes])
    return [(box, part.view(box.shape)) for box, part in zip(boxes, parts, strict=True)]
