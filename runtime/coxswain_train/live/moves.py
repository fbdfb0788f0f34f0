"""Moves the parts of a transfer list, in rounds of bounded size: small parts packed by peer, large ones as they are.

A manifest names generation, round, size and digest of what a peer sends in a round. What does not match it is a fault, which
the caller's vote makes known: the receiver goes on, so that no other rank waits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from coxswain.boxes import Box, match, window
from coxswain.transfers import Transfers
from coxswain_train.live.copies import WINDOW_BYTES
from coxswain_train.live.digests import chained, digest_of
from coxswain_train.model.ring import Exchange, Message, Pending
from coxswain_train.parallel.state import Rooms

IN_FLIGHT = 2
"""Rounds."""

LARGE_BYTES = 256 << 10  # a message of its own costs less than packing so many
_HEADER = 32  # bytes: four numbers


class Move(NamedTuple):
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
        if self.last - self.first <= rows:
            yield self
            return
        for start in range(self.first, self.last, rows):
            stop = min(start + rows, self.last)
            yield Move(self.name, start, stop, self.left, self.right, self.sender, self.receiver)


def moves_of(names: Sequence[str], found: Transfers) -> list[Move]:
    columns = (found.first, found.last, found.left, found.right, found.sender, found.receiver)
    return list(map(Move, [names[name] for name in found.name.tolist()], *(column.tolist() for column in columns)))


def rounds(
    moves: Iterable[Move], bytes_of: Mapping[str, int], most: int = WINDOW_BYTES // IN_FLIGHT
) -> list[list[Move]]:
    """In each round a rank sends and receives at most `most` bytes. `bytes_of`: of one element of each tensor, all kinds."""
    found: list[list[Move]] = []
    # The last round, and bytes in it, of what each rank sends, and, with its number inverted, of what it receives.
    last: dict[int, tuple[int, int]] = {}
    for whole in moves:
        element = bytes_of[whole.name]
        for move in whole.split(most // element):
            size, out, into = move.elements * element, move.sender, ~move.receiver
            (sending, sent), (receiving, received) = last.get(out, (0, 0)), last.get(into, (0, 0))
            turn = max(sending, receiving)
            sent, received = sent * (sending == turn), received * (receiving == turn)
            if 0 < max(sent, received) > most - size:
                turn, sent, received = turn + 1, 0, 0
            last[out], last[into] = (turn, sent + size), (turn, received + size)
            while len(found) <= turn:
                found.append([])
            found[turn].append(move)
    return found


def copy_inside(have: Rooms, need: Rooms) -> None:
    """Fills what this rank needs and holds already, where it is not the same memory."""
    need = {box: tensors for box, tensors in need.items() if tensors[0] is not have.get(box, [None])[0]}
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


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to or comes from one peer in a round: the packed small parts behind the manifest, then the large ones.

    A large part whose memory is not dense has a dense copy in `large`.
    """

    peer: int
    views: Sequence[Tensor]
    buffer: Tensor
    large: Sequence[Tensor]

    @property
    def messages(self) -> list[Message]:
        return [(self.peer, tensor) for tensor in (self.buffer, *self.large)]

    def manifest(self, generation: int, number: int) -> list[int]:
        digests = [digest_of(self.buffer[_HEADER:]), *(digest_of(part) for part in self.large)]
        return [generation, number, sum(v.nbytes for v in self.views), chained(digests)]


Flight = tuple[int, Pending, list[Parcel], list[Parcel]]  # a round, what it sends and what it receives


@dataclass(slots=True)
class Mover:
    """One rank's end of the moves. `faults`: messages that did not match their manifests.

    Parts of at least `large` bytes are sent from where they are, and received where they belong.
    """

    everyone: Exchange
    me: int
    generation: int
    device: torch.device
    large: int = LARGE_BYTES
    faults: list[str] = field(default_factory=list)
    received: int = 0  # bytes, without manifests

    def run(self, every: Sequence[Sequence[Move]], have: Rooms, need: Rooms) -> None:
        """A round begins before the one before it has ended. While the first ones are under way, this rank copies what it needs
        and holds already."""
        sources, targets, todo = Rectangles(have), Rectangles(need), iter(enumerate(every))
        flights = deque(self._begin(*each, sources, targets) for each in islice(todo, IN_FLIGHT))
        copy_inside(have, need)
        while flights:
            self._finish(*flights.popleft())
            flights.extend(self._begin(*each, sources, targets) for each in islice(todo, 1))

    def _begin(self, number: int, moves: Sequence[Move], sources: Rectangles, targets: Rectangles) -> Flight:
        out = _by_peer((m.receiver, sources.views(m)) for m in moves if m.sender == self.me)
        into = _by_peer((m.sender, targets.views(m)) for m in moves if m.receiver == self.me)
        sends = [self._packed(peer, views, number) for peer, views in out]
        receives = [self._parcel(peer, views, torch.empty_like) for peer, views in into]
        return number, self._start(sends, receives), sends, receives

    def _start(self, sends: Iterable[Parcel], receives: Iterable[Parcel]) -> Pending:
        return self.everyone.start([m for s in sends for m in s.messages], [m for r in receives for m in r.messages])

    def _parcel(self, peer: int, views: Sequence[Tensor], dense: Callable[[Tensor], Tensor]) -> Parcel:
        size = sum(view.nbytes for view in views if not self._is_large(view))
        buffer = torch.empty(_HEADER + -(-size // 8) * 8, dtype=torch.uint8, device=self.device)
        large = [view if view.is_contiguous() else dense(view) for view in views if self._is_large(view)]
        return Parcel(peer, views, buffer, large)

    def _is_large(self, view: Tensor) -> bool:
        return view.nbytes >= self.large

    def _small(self, parcel: Parcel) -> Iterator[tuple[Tensor, Tensor]]:
        return _parts(parcel.buffer, [view for view in parcel.views if not self._is_large(view)])

    def _packed(self, peer: int, views: Sequence[Tensor], number: int) -> Parcel:
        parcel = self._parcel(peer, views, Tensor.contiguous)
        parcel.buffer[-8:] = 0  # no value may fill the end
        for part, view in self._small(parcel):
            part.copy_(view)
        manifest = torch.tensor(parcel.manifest(self.generation, number))
        parcel.buffer[:_HEADER].view(torch.int64).copy_(manifest)
        return parcel

    def _finish(self, number: int, transfer: Pending, _: list[Parcel], receives: list[Parcel]) -> None:
        transfer.wait()
        for parcel in receives:
            said, found = parcel.buffer[:_HEADER].view(torch.int64).tolist(), parcel.manifest(self.generation, number)
            if said != found:
                self.faults.append(
                    f"rank {parcel.peer}'s message of round {number} says {said}, what arrived is {found}"
                )
            self._unpack(parcel)

    def _unpack(self, parcel: Parcel) -> None:
        for part, view in self._small(parcel):
            view.copy_(part)
        for part, view in zip(parcel.large, (v for v in parcel.views if self._is_large(v)), strict=True):
            if part is not view:
                view.copy_(part)
        self.received += sum(view.nbytes for view in parcel.views)


def _by_peer(parts: Iterable[tuple[int, list[Tensor]]]) -> list[tuple[int, list[Tensor]]]:
    ordered = sorted(parts, key=lambda part: part[0])  # stable
    return [(peer, [v for _, views in same for v in views]) for peer, same in groupby(ordered, lambda part: part[0])]


def _parts(buffer: Tensor, views: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    at = _HEADER
    for view in views:
        stop = at + view.nbytes
        yield buffer[at:stop].view(view.dtype).view(view.shape), view
        at = stop


def bytes_of(shapes: Mapping[str, tuple[int, ...]], element: int) -> dict[str, int]:
    """Of what one row and column of each tensor stand for."""
    return {name: element * prod(shape[2:]) for name, shape in shapes.items()}
