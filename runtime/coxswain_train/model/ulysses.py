"""Ulysses within a ring (Jacobs et al., arXiv 2309.14509), and rings of what remains (Fang and Zhao, arXiv 2405.07719).

A ring of D members is D / u *head groups* of u neighbours. A member has all heads of its own tokens. One exchange within
the group gives it 1 / u of the heads for all tokens of the group, a second one gives back what became of its own tokens.
Between the two, members of one place in their groups are a ring of D / u; where there is one group, a device attends alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from coxswain.errors import Refused
from coxswain_train.model.attention import Kernel, PackKernel, TaskAttention, without_waiting
from coxswain_train.model.ring import Chunk, Chunks, Exchange, Ring, RingKernel


def ulysses_attention(
    place: int, sequences: Sequence[Sequence[Chunks]], share: int, exchange_of: Callable[[tuple[int, ...]], Exchange]
) -> TaskAttention:
    """Causal attention within each sequence of a ring, of which `share` neighbours exchange heads.

    `sequences`: per sequence the chunks of all members, as a `Ring` has them. `exchange_of`: of members, by their places.
    """
    degree = len(sequences[0])
    group, mine = divmod(place, share)
    first = group * share
    members = tuple(range(first, first + share))
    heads = HeadGroup(mine, tuple(chunks[first : first + share] for chunks in sequences), exchange_of(members))
    tables = tuple(_by_group(chunks, share) for chunks in sequences)
    ring = Ring(group, tables, exchange_of(tuple(range(mine, degree, share))))
    return TaskAttention(_kernel(ring), heads)


def _kernel(ring: Ring) -> Kernel:
    """One group has whole sequences."""
    return RingKernel(ring) if ring.degree > 1 else PackKernel(tuple(_tokens(group) for (group,) in ring.sequences))


def _by_group(chunks: Sequence[Chunks], share: int) -> tuple[Chunks, ...]:
    """Each group's chunks of one sequence, neighbours joined: heads of neighbours are neighbours, and so are tails."""
    return tuple(tuple(_joined(sorted(sum(chunks[i : i + share], ())))) for i in range(0, len(chunks), share))


def _joined(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    start = stop = -1
    for begin, end in chunks:
        if begin != stop:
            if stop > start:
                yield start, stop
            start = begin
        stop = end
    if stop > start:
        yield start, stop


def _tokens(chunks: Chunks) -> int:
    return sum(stop - start for start, stop in chunks)


@dataclass(slots=True)
class HeadGroup:
    """One member's view of its head group: its place in it, and per sequence the chunks of the group's members.

    A member's tokens lie sequence by sequence, and so do the group's: by position within a sequence.
    """

    place: int
    sequences: tuple[Sequence[Chunks], ...]
    exchange: Exchange
    _orders: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    @property
    def share(self) -> int:
        """How many members the group has."""
        return len(self.sequences[0])

    @property
    def tokens(self) -> list[int]:
        """Of each member."""
        return [sum(_tokens(chunks[m]) for chunks in self.sequences) for m in range(self.share)]

    def spread(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Own tokens of all heads to the group's tokens of some heads, differentiable. Refuses heads that do not divide:
        of a model of the user's own the plan knows what the job says of them."""
        for what, x in (("query", query), ("key", key)):
            if len(x) % self.share:
                raise Refused(
                    "BadModel",
                    f"{len(x)} {what} heads on a device cannot be shared by {self.share} members of a ring; give "
                    "model.custom.heads and kvHeads as the layers have them, or set hybridData.attention: Ring",
                )
        return _Spread.apply(query, key, value, self)  # type: ignore[no-any-return]

    def collect(self, out: Tensor) -> Tensor:
        """The group's tokens of some heads to own tokens of all heads, differentiable."""
        return _Collect.apply(out, self)  # type: ignore[no-any-return]

    def to_tokens(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each [heads, own tokens, size] to [heads / share, the group's tokens, size]."""
        sent = [_rows(x.chunk(self.share)[m] for x in tensors) for m in range(self.share)]
        whole = sent[0].new_empty((sum(self.tokens), *sent[0].shape[1:]))
        self._trade(sent, torch.split(whole, self.tokens))
        order, _ = self.token_order(whole.device)
        widths = [len(x) // self.share for x in tensors]
        return tuple(part.index_select(0, order).transpose(0, 1) for part in torch.split(whole, widths, 1))

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Back again: each [heads / share, the group's tokens, size] to [heads, own tokens, size]."""
        _, back = self.token_order(tensors[0].device)
        sent = torch.split(_rows(tensors).index_select(0, back), self.tokens)
        own = [torch.empty_like(sent[self.place]) for _ in sent]
        self._trade(sent, own)
        widths = [len(x) for x in tensors]
        parts = zip(*(torch.split(x, widths, 1) for x in own), strict=True)
        return tuple(torch.cat(each, 1).transpose(0, 1) for each in parts)

    def _trade(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """One batch: a tensor to and from every other member."""
        others = [m for m in range(self.share) if m != self.place]
        pending = self.exchange.start([(m, sent[m]) for m in others], [(m, received[m]) for m in others])
        received[self.place].copy_(sent[self.place])
        pending.wait()

    def token_order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the group's tokens are in those of its members one after another, and the other way round."""
        if self._orders is None:
            order = torch.cat([torch.arange(0), *(torch.arange(a, b) for a, b in self._pieces())])
            self._orders = without_waiting(order, device), without_waiting(order.argsort(), device)
        return self._orders

    def _pieces(self) -> list[tuple[int, int]]:
        """The members' chunks by sequence and position, as rows."""
        found = [
            (number, chunk)
            for m in range(self.share)
            for number, chunks in enumerate(self.sequences)
            for chunk in chunks[m]
        ]
        ends = list(accumulate(stop - start for _, (start, stop) in found))
        rows = zip(found, zip([0, *ends], ends, strict=False), strict=True)
        return [piece for _, piece in sorted(rows)]


def _rows(tensors: Iterable[Tensor]) -> Tensor:
    """Heads of all tensors beside each other, tokens first: what travels lies together."""
    return torch.cat([x.transpose(0, 1) for x in tensors], 1)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: HeadGroup) -> tuple[Tensor, ...]:
        ctx.group = group
        return group.to_tokens(query, key, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.group.to_heads(*grads), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, group: HeadGroup) -> Tensor:
        ctx.group = group
        return group.to_heads(out)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.to_tokens(grads[0])[0], None
