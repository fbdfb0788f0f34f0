"""Ring attention over explicit chunk tables (Liu et al., arXiv 2310.01889; causal balance by head and tail chunks).

Member i of a ring holds some chunks of each of its sequences, mostly one. Keys and values travel once around. At every
hop each member merges the attention of its queries over the keys of that hop by (output, log-sum-exp) in fp32 (fp64 for
fp64 inputs).
Backward sends keys and values around again, their gradients one hop behind; these reach their owner last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from coxswain_train.model import attention
from coxswain_train.model.attention import Gradients, TaskAttention

Chunk = tuple[int, int]  # tokens [start, stop) of the sequence
Chunks = tuple[Chunk, ...]  # of one sequence on one member, in order of position
Message = tuple[int, Tensor]  # the peer's index in the ring, and the tensor to send to or receive from it


class Pending(Protocol):
    """Transfers under way."""

    def wait(self) -> None:
        """Returns when all have ended."""
        ...

    def arrived(self) -> None:
        """Returns when all that is received is here."""
        ...


class Exchange(Protocol):
    """How members of one ring pass tensors. All transfers of one call go out together."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending: ...


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the own queries that see `keys` keys of another member (or, causally, of itself) from its `first` on."""

    start: int
    stop: int
    keys: int
    causal: bool = False
    first: int = 0

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def seen(self) -> slice:
        """The keys."""
        return slice(self.first, self.first + self.keys)

    def moved(self, rows: int, keys: int) -> Block:
        return replace(self, start=self.start + rows, stop=self.stop + rows, first=self.first + keys)


@dataclass(frozen=True, slots=True)
class Ring:
    """One member's view of a ring: its index in the ring, and per sequence the chunks of all members.

    A member's tokens lie sequence by sequence. Sequences share the hops; attention never crosses their edges.
    """

    place: int
    sequences: tuple[tuple[Chunks, ...], ...]
    exchange: Exchange

    @property
    def degree(self) -> int:
        return len(self.sequences[0])

    def owner(self, hop: int) -> int:
        """The member whose keys are here at this hop."""
        return (self.place - hop) % self.degree

    def recv_buffer(self, hop: int, kv: Tensor) -> Tensor | None:
        """Space for the keys and values of a hop; None after the last one."""
        if hop >= self.degree:
            return None
        tokens = sum(_tokens(chunks[self.owner(hop)]) for chunks in self.sequences)
        return kv.new_empty((*kv.shape[:2], tokens, kv.shape[3]))

    def work(self, hop: int) -> list[Block]:
        """The blocks of own queries over the keys of a hop."""
        found, rows, keys = [], 0, 0
        for chunks in self.sequences:
            mine, theirs = chunks[self.place], chunks[self.owner(hop)]
            found += [block.moved(rows, keys) for block in (blocks(mine, theirs) if hop else own_block(mine))]
            rows, keys = rows + _tokens(mine), keys + _tokens(theirs)
        return found

    def pass_on(self, leaving: Sequence[Tensor | None], arriving: Sequence[Tensor | None]) -> Pending:
        """Sends to the next member and receives from the one before, in one batch."""
        after, before = (self.place + 1) % self.degree, (self.place - 1) % self.degree
        return self.exchange.start(
            [(after, x) for x in leaving if x is not None], [(before, x) for x in arriving if x is not None]
        )


def _tokens(chunks: Chunks) -> int:
    return sum(stop - start for start, stop in chunks)


def own_block(mine: Chunks) -> list[Block]:
    """Chunks in order of position are causal among themselves."""
    tokens = _tokens(mine)
    return [Block(0, tokens, tokens, causal=True)] if tokens else []


def blocks(mine: Sequence[Chunk], theirs: Sequence[Chunk]) -> list[Block]:
    """The causal blocks of the chunks `mine` over another member's chunks `theirs`: later keys are skipped.

    Neighbouring chunks that see the same keys become one block, so a head-tail pair needs one kernel call a hop.
    """
    rows, found = 0, []
    for start, stop in mine:
        keys = sum(b - a for a, b in theirs if b <= start)
        found.append(Block(rows, rows + stop - start, keys))
        rows += stop - start
    merged = (list(group) for _, group in groupby(found, key=lambda b: b.keys))
    return [Block(g[0].start, g[-1].stop, g[0].keys) for g in merged if g[0].keys and g[-1].stop > g[0].start]


def ring_attention(ring: Ring) -> TaskAttention:
    """Causal attention within each sequence of a ring, whose chunks lie on its members."""
    return TaskAttention(RingKernel(ring))


@dataclass(frozen=True, slots=True)
class RingKernel:
    """Both directions run all hops: the other members must run them too."""

    ring: Ring

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        ring = self.ring
        kv = torch.stack((key, value))  # [2, kv heads, tokens, size]
        out, lse = _nothing(query)
        for hop in range(ring.degree):
            next_kv = ring.recv_buffer(hop + 1, kv)
            transfer = ring.pass_on([kv if next_kv is not None else None], [next_kv])
            _attend(query, kv, ring.work(hop), out, lse)
            transfer.wait()
            kv = kv if next_kv is None else next_kv
        return out.to(query.dtype), lse

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> Gradients:
        ring, saved = self.ring, (gradient, query, out, lse)
        kv, query_grad = torch.stack((key, value)), torch.zeros_like(query, dtype=lse.dtype)
        dkv: Tensor | None = None  # gradients of the keys that were here a hop ago: they follow the keys
        for hop in range(ring.degree):
            next_kv = ring.recv_buffer(hop + 1, kv)
            next_dkv = None if dkv is None else torch.empty_like(kv, dtype=lse.dtype)
            transfer = ring.pass_on([kv if next_kv is not None else None, dkv], [next_kv, next_dkv])
            here = _gradients(saved, kv, ring.work(hop), query_grad)
            transfer.wait()
            dkv = here if next_dkv is None else here.add_(next_dkv)
            kv = kv if next_kv is None else next_kv
        assert dkv is not None  # a ring has a member
        key_grad, value_grad = _send_home(ring, dkv, key).to(key.dtype)
        return query_grad.to(query.dtype), key_grad, value_grad


def _nothing(query: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over no keys yet."""
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=wide)
    tokens_first = query.new_zeros(
        (query.shape[1], query.shape[0], query.shape[2]), dtype=wide
    )  # as projections want it
    return tokens_first.transpose(0, 1), lse


def _attend(query: Tensor, kv: Tensor, work: Sequence[Block], out: Tensor, lse: Tensor) -> None:
    """Merges the attention over the keys of this hop into `out` and `lse`."""
    for block in work:
        rows, keys = block.rows, block.seen
        part, part_lse = attention.forward(query[:, rows], kv[0, :, keys], kv[1, :, keys], causal=block.causal)
        if block.causal:  # the first hop: there is nothing to merge with
            out[:, rows], lse[:, rows] = part, part_lse
        else:
            merge(out[:, rows], lse[:, rows], part, part_lse)


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Adds a partial softmax, which may be of a narrower type, in place. The log-sigmoid form cannot overflow."""
    difference = part_lse - lse
    out.add_((part - out) * torch.sigmoid(difference).unsqueeze(-1))
    lse.sub_(logsigmoid(-difference))


def _gradients(
    saved: tuple[Tensor, Tensor, Tensor, Tensor], kv: Tensor, work: Sequence[Block], query_grad: Tensor
) -> Tensor:
    """Gradients of the keys and values of this hop; adds that of the queries."""
    here = torch.zeros_like(kv, dtype=query_grad.dtype)
    for block in work:
        rows, keys = block.rows, block.seen
        g, q, o, s = (x[:, rows] for x in saved)
        key, value = kv[:, :, keys]
        dq, dk, dv = attention.backward(g, q, key, value, o, s.contiguous(), causal=block.causal)
        query_grad[:, rows] += dq
        here[0, :, keys] += dk
        here[1, :, keys] += dv
    return here


def _send_home(ring: Ring, dkv: Tensor, key: Tensor) -> Tensor:
    """The last hop: the gradients of the neighbour's keys leave, those of the own keys arrive."""
    if ring.degree == 1:
        return dkv
    home = torch.empty((2, *key.shape), dtype=dkv.dtype, device=dkv.device)
    ring.pass_on([dkv], [home]).wait()
    return home
