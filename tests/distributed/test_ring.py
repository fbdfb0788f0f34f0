"""Rings over explicit chunk tables, without processes: the members take turns as threads over queues."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from coxswain.errors import Refused
from coxswain_train.model import attention
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.ring import (
    Block,
    Chunk,
    Exchange,
    Message,
    Pending,
    Ring,
    blocks,
    merge,
    own_block,
    ring_attention,
)
from coxswain_train.model.ulysses import HeadGroup, ulysses_attention
from tests.distributed.cuda_kernels import CudaKernels
from tests.distributed.threads import ThreadWorld, run_threads

LENGTH, HEADS, KV_HEADS, SIZE = 131, 4, 2, 8


def table(length: int, degree: int) -> tuple[tuple[Chunk, ...], ...]:
    cuts = [length * i // (2 * degree) for i in range(2 * degree + 1)]
    chunks = list(itertools.pairwise(cuts))
    pairs = [(chunks[i], chunks[2 * degree - 1 - i]) for i in range(degree)]
    return tuple(tuple(c for c in pair if c[1] > c[0]) for pair in pairs)


def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key, value and the gradient of the output."""
    g = torch.Generator().manual_seed(3)
    shapes = [(HEADS, length, SIZE), (KV_HEADS, length, SIZE), (KV_HEADS, length, SIZE), (HEADS, length, SIZE)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def run(tensors: list[Tensor], *sequences: tuple[tuple[Chunk, ...], ...], share: int = 1) -> list[Tensor]:
    """Output and gradients of query, key and value of whole sequences one after another, computed by a ring.

    `share`: so many neighbours exchange heads.
    """
    ends = [max(stop for member in chunks for _, stop in member) for chunks in sequences]
    begins = [0, *itertools.accumulate(ends)]

    def member(world: ThreadWorld) -> list[Tensor]:
        place, everyone = world.rank, tuple(range(world.ranks))
        mine = [torch.arange(*c) + b for b, chunks in zip(begins, sequences, strict=False) for c in chunks[place]]
        rows = torch.cat(mine or [torch.arange(0)])
        q, k, v = (x[:, rows].clone().requires_grad_() for x in tensors[:3])
        ring = ring_attention(Ring(place, sequences, world.exchange(everyone)))
        attend = ulysses_attention(place, sequences, share, world.exchange) if share > 1 else ring
        out = attend(q, k, v)
        out.backward(tensors[3][:, rows])
        return [rows, out.detach(), *(x.grad for x in (q, k, v))]

    results = run_threads(len(sequences[0]), member)
    order = torch.cat([r[0] for r in results]).argsort()
    return [torch.cat([r[i] for r in results], 1)[:, order] for i in range(1, 5)]


def alone(tensors: list[Tensor], *lengths: int) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    out = pack_attention(lengths or (q.shape[1],))(q, k, v)
    out.backward(tensors[3])
    return [out.detach(), *(x.grad for x in (q, k, v))]


@dataclass(frozen=True)
class CountingExchange:
    """Writes down the elements of each batch that is sent."""

    exchange: Exchange
    sent: list[int]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        self.sent.extend([sum(tensor.numel() for _, tensor in sends)] if sends else [])
        return self.exchange.start(sends, receives)


def errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found, expected, strict=True)]


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(errors(found, expected))


@pytest.mark.parametrize("degree", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("length", [LENGTH, 7, 1])
def test_a_ring_of_any_degree_equals_one_device(degree: int, length: int) -> None:
    tensors = inputs(length, torch.float64)
    assert error(run(tensors, table(length, degree)), alone(tensors)) <= 1e-13


def test_any_partition_of_the_sequence_is_a_legal_chunk_table() -> None:
    chunks = (((0, 5), (60, 90)), ((20, 60),), ((5, 20), (90, 91), (100, LENGTH)), ((91, 100),))
    tensors = inputs(LENGTH, torch.float64)
    assert error(run(tensors, chunks), alone(tensors)) <= 1e-13


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_sequences_that_share_a_ring_do_not_see_each_other(degree: int) -> None:
    """One of them is shorter than the ring, so that some members hold nothing of it."""
    lengths = (40, 2, 29, 1, 59)
    tensors = inputs(sum(lengths), torch.float64)
    found = run(tensors, *(table(length, degree) for length in lengths))
    assert error(found, alone(tensors, *lengths)) <= 1e-13


# Members, and how many neighbours among them exchange heads: all, some, and more groups than one has members.
SHARES = [(2, 2), (4, 2), (6, 2), (8, 2), (4, 4), (8, 4)]


def wide(length: int, dtype: torch.dtype = torch.float64, heads: int = 8, key_heads: int = 4) -> list[Tensor]:
    """As `inputs`, with key heads for four members."""
    g = torch.Generator().manual_seed(5)
    shapes = [(n, length, SIZE) for n in (heads, key_heads, key_heads, heads)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize(("degree", "share"), SHARES)
@pytest.mark.parametrize("lengths", [(LENGTH,), (7,), (1,), (40, 2, 29, 1, 59)], ids=str)
def test_members_that_exchange_heads_equal_one_device(degree: int, share: int, lengths: tuple[int, ...]) -> None:
    """Forward and backward, with grouped queries, uneven and empty chunks, and several sequences in one ring."""
    tensors = wide(sum(lengths))
    found = run(tensors, *(table(length, degree) for length in lengths), share=share)
    assert error(found, alone(tensors, *lengths)) <= 1e-13


@pytest.mark.parametrize("share", [2, 4])
def test_members_that_exchange_heads_may_hold_any_partition_of_the_sequence(share: int) -> None:
    chunks = (((0, 5), (60, 90)), ((20, 60),), ((5, 20), (90, 91), (100, LENGTH)), ((91, 100),))
    tensors = wide(LENGTH)
    assert error(run(tensors, chunks, share=share), alone(tensors)) <= 1e-13


@pytest.mark.parametrize(("degree", "share"), [(4, 4), (4, 2)])
def test_an_exchange_of_heads_on_kernels_that_ignore_strides_equals_one_device(
    degree: int, share: int, cuda: CudaKernels
) -> None:
    tensors, lengths = wide(LENGTH), (40, 1, 90)
    found = run(tensors, *(table(length, degree) for length in lengths), share=share)
    names = {"varlen forward", "varlen backward"} if degree == share else {"forward", "backward"}
    assert {*cuda.calls} == names
    assert error(found, alone(tensors, *lengths)) <= 1e-13


def test_what_an_exchange_of_heads_brings_can_go_to_host_memory() -> None:
    """Queries, keys and values are tensors of their own there, without gaps between their rows."""

    def member(world: ThreadWorld) -> list[bool]:
        heads = HeadGroup(world.rank, (table(64, 4),), world.exchange((0, 1, 2, 3)))
        found = heads.spread(*(x[:, :16] for x in wide(64)[:3]))
        return [torch.ops.aten.is_non_overlapping_and_dense(x) for x in (*found, heads.collect(found[0]))]

    assert run_threads(4, member) == [[True] * 4] * 4


@pytest.mark.parametrize(("heads", "key_heads", "what"), [(6, 3, "3 key heads"), (9, 3, "9 query heads")])
def test_heads_that_do_not_divide_are_refused_by_their_number(heads: int, key_heads: int, what: str) -> None:
    with pytest.raises(
        Refused, match=f"{what} on a device cannot be shared by 2 members of a ring; give model.custom.heads"
    ):
        run(wide(16, heads=heads, key_heads=key_heads), table(16, 2), share=2)


def test_an_exchange_of_heads_is_one_batch_before_attention_and_one_after_it_in_each_direction() -> None:
    """Of a member's q, k, v and output each other member gets its share of the heads, and no other message leaves."""
    sent: list[int] = []

    def member(world: ThreadWorld) -> None:
        log = sent if not world.rank else []
        attend = ulysses_attention(
            world.rank, (table(64, 4),), 4, lambda members: CountingExchange(world.exchange(members), log)
        )
        q, k, v, g = (x[:, :16].clone().requires_grad_() for x in wide(64))
        attend(q, k, v).backward(g.detach())

    run_threads(4, member)
    own = 16 * SIZE * 3 // 4  # elements of one head that leave
    assert sent == [own * (8 + 2 * 4), own * 8, own * 8, own * (8 + 2 * 4)]


def test_sequences_share_the_hops_of_their_ring() -> None:
    """A member sends one tensor a hop, however many sequences it has."""
    sent: list[int] = []

    def member(world: ThreadWorld) -> None:
        exchange = world.exchange((0, 1))
        ring = Ring(world.rank, (table(40, 2), table(8, 2)), CountingExchange(exchange, sent if not world.rank else []))
        q, k, v = (x[:, :24] for x in inputs(48, torch.float64)[:3])
        ring_attention(ring)(q, k, v)

    run_threads(2, member)
    assert sent == [2 * KV_HEADS * 24 * SIZE]


def test_the_error_of_a_ring_of_sixteen_is_at_most_one_and_a_half_times_that_of_two() -> None:
    exact = alone(inputs(1024, torch.float64))
    two, sixteen = (error(run(inputs(1024, torch.float32), table(1024, degree)), exact) for degree in (2, 16))
    assert sixteen <= 1.5 * two


def test_bfloat16_rings_merge_outputs_and_add_up_gradients_in_fp32() -> None:
    """In bf16 each of the hops would round them: an error at least half as large again as that of one call."""
    tensors = inputs(1024, torch.bfloat16)
    exact = alone([x.double() for x in tensors])
    ring, flash = (errors(found, exact) for found in (run(tensors, table(1024, 16)), alone(tensors)))
    assert all(hops <= 4 / 3 * call for hops, call in zip(ring, flash, strict=True)), (ring, flash)


def test_a_head_tail_pair_needs_one_block_a_hop_and_skips_the_future() -> None:
    head_tail = table(80, 4)  # member 1 holds [10, 20) and [60, 70)
    assert blocks(head_tail[1], head_tail[0]) == [Block(0, 20, 10)]
    assert blocks(head_tail[1], head_tail[2]) == [Block(10, 20, 20)]


def test_a_chunk_without_a_token_is_no_block() -> None:
    assert blocks(((4, 4),), ((0, 2),)) == own_block(((4, 4),)) == []
    assert blocks(((4, 4), (6, 9)), ((0, 2), (5, 5))) == [Block(0, 3, 2)]


def test_merging_extreme_weights_does_not_overflow() -> None:
    out, lse = torch.zeros(1, 2, 3), torch.tensor([[-1e4, 1e4]])
    merge(out, lse, torch.ones(1, 2, 3), torch.tensor([[1e4, -1e4]]))
    assert out[0, :, 0].tolist() == [1.0, 0.0]
    assert lse.tolist() == [[1e4, 1e4]]


def test_the_kernels_gradients_of_shared_keys_are_sums_over_their_heads() -> None:
    q, k, v, g = inputs(9, torch.float64)
    wide = [x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v)]
    out, lse = attention.forward(q, k, v, causal=True)
    few = attention.backward(g, q, k, v, out, lse, causal=True)
    many = attention.backward(g, q, *wide, out, lse, causal=True)
    assert torch.allclose(few[1], many[1].view(KV_HEADS, -1, 9, SIZE).sum(1), rtol=1e-12, atol=1e-14)
    assert torch.allclose(few[2], many[2].view(KV_HEADS, -1, 9, SIZE).sum(1), rtol=1e-12, atol=1e-14)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaKernels:
    """CUDA's kernels for tensors on the CPU."""
    kernels = CudaKernels()
    monkeypatch.setattr(attention, "aten", kernels)
    monkeypatch.setattr(attention, "on_cuda", lambda _: True)
    return kernels


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8, 16])
def test_a_ring_on_kernels_that_ignore_strides_equals_one_device(degree: int, cuda: CudaKernels) -> None:
    tensors = inputs(LENGTH, torch.float64)
    found = run(tensors, table(LENGTH, degree))
    assert {"forward", "backward"} == set(cuda.calls)
    assert error(found, alone(tensors)) <= 1e-13


@dataclass
class Travelling:
    """An exchange that notes its begins and the waits for it, and brings zeros."""

    said: list[str]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Travelling:
        self.said.append("start")
        for _, tensor in receives:
            tensor.zero_()
        return self

    def wait(self) -> None:
        self.said.append("wait")

    def arrived(self) -> None: ...


def test_a_hop_travels_while_the_keys_that_are_here_are_attended_to(cuda: CudaKernels) -> None:
    q, k, v, g = (x[:, :20].clone().requires_grad_() for x in inputs(40, torch.float64))
    ring_attention(Ring(1, (table(40, 2),), Travelling(cuda.calls)))(q, k, v).backward(g.detach())
    hops = [["start", kernel, "wait"] * 2 for kernel in ("forward", "backward")]
    assert cuda.calls == [*hops[0], *hops[1], "start", "wait"]


@pytest.mark.parametrize("lengths", [[LENGTH], [40, 1, 90], [1] * LENGTH])
def test_a_pack_takes_one_call_of_the_kernel_for_all_its_sequences(lengths: list[int], cuda: CudaKernels) -> None:
    tensors = inputs(LENGTH, torch.float64)
    found = alone(tensors, *lengths)
    assert cuda.calls == ["varlen forward", "varlen backward"]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    parts = [
        alone([x[:, end - n : end].contiguous() for x in tensors], n) for n, end in zip(lengths, ends, strict=True)
    ]
    assert error(found, [torch.cat(each, 1) for each in zip(*parts, strict=True)]) <= 1e-15


def test_a_strided_log_sum_exp_is_refused_on_every_device() -> None:
    """CUDA's backward would read other rows there; the CPU's would not notice."""
    q, k, v, g = inputs(9, torch.float64)
    out, lse = attention.forward(q, k, v, causal=True)
    rows = slice(2, 9)
    with pytest.raises(ValueError, match=r"log-sum-exp of shape \(4, 7\), strides \(9, 1\): not contiguous"):
        attention.backward(g[:, rows], q[:, rows], k, v, out[:, rows], lse[:, rows], causal=False)
    attention.backward(g[:, rows], q[:, rows], k, v, out[:, rows], lse[:, rows].contiguous(), causal=False)


def test_a_strided_log_sum_exp_of_a_pack_is_refused(cuda: CudaKernels) -> None:
    q, k, v, g = inputs(9, torch.float64)
    out, lse = pack_attention([4, 5]).kernel.forward(q, k, v)
    with pytest.raises(ValueError, match=r"log-sum-exp of shape \(4, 9\), strides \(1, 4\): not contiguous"):
        pack_attention([4, 5]).kernel.backward(g, q, k, v, out, lse.T.contiguous().T)
    assert cuda.calls == ["varlen forward"]


def test_rows_whose_elements_are_apart_are_refused_on_every_device() -> None:
    q, k, v, _ = inputs(9, torch.float64)
    apart = k.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="elements of a row must be next to each other"):
        attention.forward(q, apart, v, causal=True)
