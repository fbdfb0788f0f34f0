"""Moves the parts of a transfer list, in rounds of bounded size: packed by peer, each message with a manifest.

A manifest names generation, round, size and digest. A message that does not match it is a fault, which the caller's vote
makes known: the receiver goes on, so that no other rank waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

import torch
from torch import Tensor

from coxswain.boxes import Box, match, window
from coxswain.transfers import Transfers
from coxswain_train.live.copies import WINDOW_BYTES
from coxswain_train.live.digests import digest_of
from coxswain_train.model.ring import Exchange

_HEADER = 32  # bytes: four numbers
Rooms = Mapping[Box, Sequence[Tensor]]  # the tensors of each box, one a kind


@dataclass(frozen=True, slots=True)
class Move:
    """Rows [first, last) and columns [left, right) of a tensor. A vector has one column."""

    name: str
    first: int
    last: int
    left: int
    right: int
    sender: int
    receiver: int

    @property
    def elements(self) -> int:
        return (self.last - self.first) * (self.right - self.left)

    def split(self, most: int) -> Iterator[Move]:
        """By rows, so that each has at most so many elements where a row has no more."""
        rows = max(1, most // (self.right - self.left))
        for start in range(self.first, self.last, rows):
            stop = min(start + rows, self.last)
            yield Move(self.name, start, stop, self.left, self.right, self.sender, self.receiver)


def moves_of(names: Sequence[str], found: Transfers) -> list[Move]:
    columns = (found.first, found.last, found.left, found.right, found.sender, found.receiver)
    rows = zip(found.name.tolist(), *(column.tolist() for column in columns), strict=True)
    return [Move(names[name], *row) for name, *row in rows]


def rounds(moves: Iterable[Move], bytes_of: Mapping[str, int], most: int = WINDOW_BYTES) -> list[list[Move]]:
    """In each round a rank sends and receives at most `most` bytes. `bytes_of`: of one element of each tensor, all kinds."""
    found: list[list[Move]] = []
    turns: dict[tuple[str, int], int] = defaultdict(int)
    filled: dict[tuple[str, int], int] = defaultdict(int)
    for whole in moves:
        for move in whole.split(most // bytes_of[whole.name]):
            size, ends = move.elements * bytes_of[move.name], (("out", move.sender), ("in", move.receiver))
            turn = max(turns[end] for end in ends)
            turn += any(turns[end] == turn and 0 < filled[end] > most - size for end in ends)
            for end in ends:
                filled[end] = size + (filled[end] if turns[end] == turn else 0)
                turns[end] = turn
            found += [[] for _ in range(turn + 1 - len(found))]
            found[turn].append(move)
    return found


def copy_inside(have: Rooms, need: Rooms) -> None:
    """Fills what this rank needs and holds already."""
    pieces, _ = match(have, need)
    for piece in pieces:
        for source, target in zip(have[piece.have], need[piece.need], strict=True):
            target[window(piece.need, piece.part)] = source[window(piece.have, piece.part)]


class Rectangles:
    """Finds the parts of boxes that moves name."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms: dict[str, list[tuple[Box, Sequence[Tensor]]]] = defaultdict(list)
        for box, tensors in rooms.items():
            self._rooms[box.name].append((box, tensors))

    def views(self, move: Move) -> list[Tensor]:
        low, high = (move.first, move.left), (move.last, move.right)
        for box, tensors in self._rooms[move.name]:
            offset, shape = box.offset[:2], box.shape[:2]
            if all(o <= a and b <= o + n for o, n, a, b in zip(offset, shape, low, high, strict=False)):
                where = tuple(slice(a - o, b - o) for o, a, b in zip(offset, low, high, strict=False))
                return [tensor[where] for tensor in tensors]
        raise KeyError(f"{move} is in no box of this rank")


@dataclass(slots=True)
class Mover:
    """One rank's end of the moves. `faults`: messages that did not match their manifests."""

    everyone: Exchange
    me: int
    generation: int
    device: torch.device
    faults: list[str] = field(default_factory=list)
    received: int = 0  # bytes, without manifests

    def run(self, every: Sequence[Sequence[Move]], have: Rooms, need: Rooms) -> None:
        sources, targets = Rectangles(have), Rectangles(need)
        for number, moves in enumerate(every):
            out = _by_peer((m.receiver, sources.views(m)) for m in moves if m.sender == self.me)
            into = _by_peer((m.sender, targets.views(m)) for m in moves if m.receiver == self.me)
            sends = [(peer, self._pack(views, number)) for peer, views in out]
            receives = [(peer, self._room(views)) for peer, views in into]
            self.everyone.start(sends, receives).wait()
            for (peer, buffer), (_, views) in zip(receives, into, strict=True):
                self._unpack(peer, number, buffer, views)

    def _room(self, views: Sequence[Tensor]) -> Tensor:
        size = sum(view.numel() * view.element_size() for view in views)
        return torch.zeros(_HEADER + -(-size // 8) * 8, dtype=torch.uint8, device=self.device)

    def _pack(self, views: Sequence[Tensor], number: int) -> Tensor:
        buffer = self._room(views)
        for part, view in _parts(buffer, views):
            part.copy_(view)
        buffer[:_HEADER].view(torch.int64).copy_(torch.tensor(self._manifest(buffer, number)))
        return buffer

    def _manifest(self, buffer: Tensor, number: int) -> list[int]:
        return [self.generation, number, len(buffer), digest_of(buffer[_HEADER:])]

    def _unpack(self, peer: int, number: int, buffer: Tensor, views: Sequence[Tensor]) -> None:
        said, found = buffer[:_HEADER].view(torch.int64).tolist(), self._manifest(buffer, number)
        if said != found:
            self.faults.append(f"rank {peer}'s message of round {number} says {said}, what arrived is {found}")
        for part, view in _parts(buffer, views):
            view.copy_(part)
            self.received += part.numel() * part.element_size()


def _by_peer(parts: Iterable[tuple[int, list[Tensor]]]) -> list[tuple[int, list[Tensor]]]:
    ordered = sorted(parts, key=lambda part: part[0])  # stable
    return [(peer, [v for _, views in same for v in views]) for peer, same in groupby(ordered, lambda part: part[0])]


def _parts(buffer: Tensor, views: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    at = _HEADER
    for view in views:
        stop = at + view.numel() * view.element_size()
        yield buffer[at:stop].view(view.dtype).view(view.shape), view
        at = stop


def bytes_of(shapes: Mapping[str, tuple[int, ...]], element: int) -> dict[str, int]:
    """Of what one row and column of each tensor stand for."""
    return {name: element * prod(shape[2:]) for name, shape in shapes.items()}
