"""Rings and packs on one CUDA device beside one flash call over the whole sequence. Members are threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from coxswain_train.model.attention import PackKernel
from coxswain_train.model.ring import Chunk, Ring, ring_attention
from coxswain_train.model.ulysses import ulysses_attention
from tests.distributed.threads import ThreadWorld, run_threads

LENGTH, HEADS, SIZE = 2048, 8, 64


def table(length: int, degree: int) -> tuple[tuple[Chunk, ...], ...]:
    cuts = [length * i // (2 * degree) for i in range(2 * degree + 1)]
    chunks = list(itertools.pairwise(cuts))
    return tuple((chunks[i], chunks[2 * degree - 1 - i]) for i in range(degree))


def inputs(kv_heads: int, length: int = LENGTH) -> list[Tensor]:
    """Query, key, value and the gradient of the output, as projections give them: strided views with tokens first."""
    g = torch.Generator("cuda").manual_seed(3)
    heads = (HEADS, kv_heads, kv_heads, HEADS)
    made = (torch.randn((length, n, SIZE), generator=g, device="cuda", dtype=torch.bfloat16) for n in heads)
    return [x.transpose(0, 1) for x in made]


def exact(tensors: list[Tensor], lengths: list[int]) -> list[Tensor]:
    """Output and gradients in fp64, of sequences one after another, by plain products."""
    q, k, v, g = (x.double().detach().requires_grad_() for x in tensors)
    wide_k, wide_v = (x.repeat_interleave(HEADS // len(k), 0) for x in (k, v))
    block = torch.repeat_interleave(torch.tensor(lengths, device="cuda"))
    mask = (block[:, None] == block[None]).tril()
    scores = (q @ wide_k.transpose(1, 2) / SIZE**0.5).masked_fill(~mask, -torch.inf)
    out = scores.softmax(-1) @ wide_v
    out.backward(g.detach())
    return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


def flash(tensors: list[Tensor], lengths: list[int]) -> list[Tensor]:
    """The same by one call of the kernel."""
    q, k, v, g = tensors
    kernel = PackKernel(tuple(lengths))
    out, lse = kernel.forward(q, k, v)
    return [out, *kernel.backward(g, q, k, v, out, lse)]


def ring(tensors: list[Tensor], degree: int, share: int = 1) -> list[Tensor]:
    """`share`: so many neighbours exchange heads."""
    chunks = table(LENGTH, degree)

    def member(world: ThreadWorld) -> list[Tensor]:
        rows = torch.cat([torch.arange(*c, device="cuda") for c in chunks[world.rank]])
        q, k, v = (x[:, rows].detach().requires_grad_() for x in tensors[:3])
        plain = ring_attention(Ring(world.rank, (chunks,), world.exchange(tuple(range(degree)))))
        attend = ulysses_attention(world.rank, (chunks,), share, world.exchange) if share > 1 else plain
        out = attend(q, k, v)
        out.backward(tensors[3][:, rows])
        torch.cuda.synchronize()
        return [rows, out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]

    results = run_threads(degree, member)
    order = torch.cat([r[0] for r in results]).argsort()
    return [torch.cat([r[i] for r in results], 1)[:, order] for i in range(1, 5)]


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


@pytest.mark.parametrize("kv_heads", [HEADS, 4])
@pytest.mark.parametrize(("degree", "share"), [(2, 2), (4, 4), (8, 4), (6, 2)])
def test_members_that_exchange_heads_are_as_near_to_exact_attention_as_one_flash_call(
    degree: int, share: int, kv_heads: int
) -> None:
    tensors = inputs(kv_heads)
    expected = exact(tensors, [LENGTH])
    assert error(ring(tensors, degree, share), expected) <= 1.5 * error(flash(tensors, [LENGTH]), expected) + 1e-3


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("degree", [2, 3, 4, 8, 16])
def test_a_ring_is_as_near_to_exact_attention_as_one_flash_call_forward_and_backward(
    degree: int, kv_heads: int
) -> None:
    tensors = inputs(kv_heads)
    expected = exact(tensors, [LENGTH])
    assert error(ring(tensors, degree), expected) <= 1.5 * error(flash(tensors, [LENGTH]), expected) + 1e-3


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("lengths", [[LENGTH], [1, 700, 1, 1346], [1] * LENGTH], ids=["one", "four", "of one token"])
def test_one_call_for_a_pack_equals_exact_attention_within_its_sequences(lengths: list[int], kv_heads: int) -> None:
    tensors = inputs(kv_heads)
    assert error(flash(tensors, lengths), exact(tensors, lengths)) <= 0.02


def test_a_pack_whose_inputs_are_contiguous_or_strided_has_the_same_result() -> None:
    tensors = inputs(2)
    strided, dense = flash(tensors, [48, 2000]), flash([x.contiguous() for x in tensors], [48, 2000])
    assert error(strided, dense) <= 1e-3
