"""The training state that one worker process owns: master parameters and optimizer moments, named by boxes.

It outlives process groups, worlds and models. A change of layout makes another one, fills it, and keeps that instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coxswain.boxes import Box

KINDS = ("parameter", "exp_avg", "exp_avg_sq")


class State:
    """One flat buffer for each kind, over the same boxes in the same order."""

    def __init__(self) -> None:
        self._boxes: tuple[Box, ...] = ()
        self._flat: dict[str, Tensor] = {}

    def hold(
        self, boxes: Sequence[Box], dtype: torch.dtype, device: torch.device, kinds: Sequence[str] = KINDS,
        make: Callable[..., Tensor] = torch.zeros,
    ) -> None:  # fmt: skip
        """Makes room for these boxes, with zeros. Keeps memory and values where they are the same ones already.

        `make`: `torch.empty` where all values are filled.
        """
        if self._is(tuple(boxes), tuple(kinds), dtype, device):
            return
        self._flat = {}  # first: both do not fit at one time
        size = sum(box.elements for box in boxes)
        self._boxes = tuple(boxes)
        self._flat = {kind: make(size, dtype=dtype, device=device) for kind in kinds}

    def _is(self, boxes: tuple[Box, ...], kinds: tuple[str, ...], dtype: torch.dtype, device: torch.device) -> bool:
        same = all((flat.dtype, flat.device) == (dtype, device) for flat in self._flat.values())
        return same and boxes == self._boxes and kinds == tuple(self._flat)

    @property
    def order(self) -> tuple[Box, ...]:
        """Its boxes, in the order of the buffers."""
        return self._boxes

    def __getitem__(self, kind: str) -> Tensor:
        """All values of a kind, box after box."""
        return self._flat[kind]

    def boxes(self) -> dict[str, dict[Box, Tensor]]:
        """By kind and box: views, to be filled, saved or sent."""
        return {kind: dict(views(flat, self._boxes)) for kind, flat in self._flat.items()}

    def clear(self) -> None:
        """Sets every value to zero."""
        for flat in self._flat.values():
            flat.zero_()


def views(flat: Tensor, boxes: Sequence[Box]) -> list[tuple[Box, Tensor]]:
    """Each box's part of a packed buffer, in the box's shape."""
    parts = torch.split(flat, [box.elements for box in boxes])
    return [(box, part.view(box.shape)) for box, part in zip(boxes, parts, strict=True)]
