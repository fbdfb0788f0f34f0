"""Ring attention over explicit chunk tables (Liu et al., arXiv 2310.01889; causal balance by head and tail chunks).

Member i of a ring holds some chunks of one sequence. Keys and values travel once around; every member merges the part of
its queries over the keys at hand by (output, log-sum-exp) in fp32 (fp64 for fp64 inputs). Backward sends keys and values
around again, with their gradients behind them, which arrive at home after the last hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from coxswain_train.model import attention
from coxswain_train.model.llama import AttentionFn

Chunk = tuple[int, int]  # tokens [start, stop) of the sequence
Message = tuple[int, Tensor]  # the peer's place in the ring, and what goes there or comes from there


class Pending(Protocol):
    """Transfers under way."""

    def wait(self) -> None:
        """Returns when all have ended."""
        ...


class Exchange(Protocol):
    """How members of one ring pass tensors. All transfers of one call go out together."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending: ...


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the own queries that see the first `keys` keys of another member (or, causally, of itself)."""

    start: int
    stop: int
    keys: int
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Ring:
    """One member's view of a ring: its place and the chunks of every member, each in order of position."""

    place: int
    chunks: tuple[tuple[Chunk, ...], ...]
    exchange: Exchange

    @property
    def degree(self) -> int:
        return len(self.chunks)

    def owner(self, hop: int) -> int:
        """Whose keys are here at this hop."""
        return (self.place - hop) % self.degree

    def recv_buffer(self, hop: int, held: Tensor) -> Tensor | None:
        """Space for the keys and values of a hop; None after the last one."""
        if hop >= self.degree:
            return None
        tokens = sum(stop - start for start, stop in self.chunks[self.owner(hop)])
        return held.new_empty((*held.shape[:2], tokens, held.shape[3]))

    def work(self, hop: int) -> list[Block]:
        """What the own queries have to do with the keys of a hop."""
        mine, theirs = self.chunks[self.place], self.chunks[self.owner(hop)]
        if hop:
            return blocks(mine, theirs)
        tokens = sum(stop - start for start, stop in mine)
        return [Block(0, tokens, tokens, causal=True)] if tokens else []

    def pass_on(self, leaving: Sequence[Tensor | None], coming: Sequence[Tensor | None]) -> Pending:
        """Sends to the next member and receives from the one before, in one batch."""
        after, before = (self.place + 1) % self.degree, (self.place - 1) % self.degree
        return self.exchange.start(
            [(after, x) for x in leaving if x is not None], [(before, x) for x in coming if x is not None]
        )


def blocks(mine: Sequence[Chunk], theirs: Sequence[Chunk]) -> list[Block]:
    """The causal work of the chunks `mine` over the other member's chunks `theirs`: what lies later is skipped.

    Neighbouring chunks that see the same keys become one block, so a head-tail pair needs one kernel call a hop.
    """
    rows, found = 0, []
    for start, stop in mine:
        keys = sum(b - a for a, b in theirs if b <= start)
        found.append(Block(rows, rows + stop - start, keys))
        rows += stop - start
    merged = (list(group) for _, group in groupby(found, key=lambda b: b.keys))
    return [Block(g[0].start, g[-1].stop, g[0].keys) for g in merged if g[0].keys and g[-1].stop > g[0].start]


def ring_attention(ring: Ring) -> AttentionFn:
    """Causal attention of one sequence whose chunks lie on the members of a ring."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _RingAttention.apply(query, key, value, ring)  # type: ignore[no-any-return]

    return attend


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Tensor:
        held = torch.stack((key, value))  # [2, kv heads, tokens, size]
        out, lse = _nothing(query)
        for hop in range(ring.degree):
            coming = ring.recv_buffer(hop + 1, held)
            passing = ring.pass_on([held if coming is not None else None], [coming])
            _attend(query, held, ring.work(hop), out, lse)
            passing.wait()
            held = held if coming is None else coming
        result = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.ring = ring
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        saved = (grads[0], query, out, lse)
        held, query_grad = torch.stack((key, value)), torch.zeros_like(query, dtype=lse.dtype)
        done: Tensor | None = None  # gradients of the keys that were here a hop ago: they follow the keys
        for hop in range(ring.degree):
            coming = ring.recv_buffer(hop + 1, held)
            behind = None if done is None else torch.empty_like(held, dtype=lse.dtype)
            passing = ring.pass_on([held if coming is not None else None, done], [coming, behind])
            here = _gradients(saved, held, ring.work(hop), query_grad)
            passing.wait()
            done = here if behind is None else here.add_(behind)
            held = held if coming is None else coming
        assert done is not None  # a ring has a member
        key_grad, value_grad = _send_home(ring, done, key).to(key.dtype)
        return query_grad.to(query.dtype), key_grad, value_grad, None


def _nothing(query: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over no keys yet."""
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=wide)
    return torch.zeros_like(query, dtype=wide, memory_format=torch.contiguous_format), lse


def _attend(query: Tensor, held: Tensor, work: Sequence[Block], out: Tensor, lse: Tensor) -> None:
    """Merges the attention over the keys at hand into `out` and `lse`."""
    for block in work:
        rows, keys = slice(block.start, block.stop), slice(block.keys)
        part, part_lse = attention.forward(query[:, rows], held[0, :, keys], held[1, :, keys], causal=block.causal)
        if block.causal:  # the first hop: nothing is there to merge with
            out[:, rows], lse[:, rows] = part, part_lse
        else:
            merge(out[:, rows], lse[:, rows], part.to(out.dtype), part_lse)


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Adds a partial softmax in place. The log-sigmoid form has no exponent that can overflow."""
    difference = part_lse - lse
    out.add_((part - out) * torch.sigmoid(difference).unsqueeze(-1))
    lse.sub_(logsigmoid(-difference))


def _gradients(
    saved: tuple[Tensor, Tensor, Tensor, Tensor], held: Tensor, work: Sequence[Block], query_grad: Tensor
) -> Tensor:
    """Gradients of the keys and values at hand; adds that of the queries."""
    here = torch.zeros_like(held, dtype=query_grad.dtype)
    for block in work:
        rows, keys = slice(block.start, block.stop), slice(block.keys)
        g, q, o, s = (x[:, rows] for x in saved)
        key, value = held[:, :, keys]
        dq, dk, dv = attention.backward(g, q, key, value, o, s, causal=block.causal)
        query_grad[:, rows] += dq
        here[0, :, keys] += dk
        here[1, :, keys] += dv
    return here


def _send_home(ring: Ring, done: Tensor, key: Tensor) -> Tensor:
    """The last hop: the gradients of the neighbour's keys leave, those of the own keys arrive."""
    if ring.degree == 1:
        return done
    home = torch.empty((2, *key.shape), dtype=done.dtype, device=done.device)
    ring.pass_on([done], [home]).wait()
    return home
