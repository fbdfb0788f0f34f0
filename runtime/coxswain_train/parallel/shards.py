"""Which rows of which parameter each replica owns (ZeRO-1), in the fixed order of every packed buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coxswain.boxes import Box, full_box, zero_shard


@dataclass(frozen=True, slots=True)
class Shards:
    """Per owner its boxes, decayed parameters (two and more dimensions) first, and their sizes in elements."""

    boxes: tuple[tuple[Box, ...], ...]

    @property
    def owners(self) -> int:
        return len(self.boxes)

    def size(self, owner: int) -> int:
        return sum(b.elements for b in self.boxes[owner])

    def sizes(self) -> list[int]:
        return [self.size(owner) for owner in range(self.owners)]

    def decayed(self, owner: int) -> int:
        """Elements at the beginning of the owner's buffer that are subject to weight decay."""
        return sum(b.elements for b in self.boxes[owner] if len(b.shape) > 1)


def shard(shapes: Mapping[str, tuple[int, ...]], owners: int) -> Shards:
    """Splits every parameter along its first dimension over `owners` holders of the same stage."""
    ordered = sorted(shapes, key=lambda name: len(shapes[name]) < 2)  # stable: else in the model's order
    wholes = [full_box(name, shapes[name]) for name in ordered]
    mine = ([zero_shard(box, owners, owner) for box in wholes] for owner in range(owners))
    return Shards(boxes=tuple(tuple(b for b in row if b is not None) for row in mine))
