"""What a job's policy makes of recompute and offload, and the warning of a start on CUDA."""

from __future__ import annotations

import logging

import msgspec
import pytest
import torch

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost import Constants
from coxswain.cost.constants import load_hardware
from coxswain.cost.offload import offload_ratio
from coxswain.plan.values import Slice, Task
from coxswain_train.engine import memory
from coxswain_train.engine.memory import memory_policy
from coxswain_train.engine.offload import HostCopies, Offloader
from coxswain_train.worker.worker import warn_untested

MODEL = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, feed_forward=11008)
CONSTANTS = Constants(
    linear_us_per_token=96, attention_ns_per_token2=3.5, kv_bytes_per_token=1, inside_node_gbps=1, between_nodes_gbps=1,
    task_ms=0,
)  # fmt: skip


def test_the_ratio_is_what_can_be_copied_while_a_layer_computes() -> None:
    """Forward of a layer: 1 us a token and 1/32 ns a token squared; 1,000 bytes a token at 10^8 bytes a second take 10 us."""
    assert offload_ratio([1000], CONSTANTS, 32, 1000, 1e8) == pytest.approx((1 + 1000 / 32 * 1e-3) / 10)
    assert offload_ratio([500, 500], CONSTANTS, 32, 1000, 1e8) == pytest.approx((1 + 500 / 32 * 1e-3) / 10)
    assert offload_ratio([10**6], CONSTANTS, 32, 1000, 1e8) == 1.0
    assert offload_ratio([], CONSTANTS, 32, 1000, 1e8) == 0.0
    assert offload_ratio([1000], CONSTANTS, 32, 1000, 0.0) == 0.0


def ring(tokens: int, members: int) -> Task:
    cuts = [tokens * i // members for i in range(members + 1)]
    slices = tuple(Slice(i, 0, cuts[i], cuts[i + 1]) for i in range(members))
    return Task(0, "ring", tuple(range(members)), slices)


def test_long_sequences_offload_more_and_the_degree_of_a_ring_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CudaCopies", lambda device: HostCopies())
    job = ParallelConfig(offload="Auto", hardware="h100-80g")
    policy = memory_policy(MODEL, job, 32000, torch.device("cuda"))
    assert memory_policy(MODEL, ParallelConfig(recompute="Full"), 32000, torch.device("cuda")).recompute == "Full"
    short, long = (policy.offload(ring(tokens, 4)) for tokens in (8192, 262_144))
    assert 0 < short < long <= 1
    assert policy.offload(ring(8192, 8)) == short
    pack = Task(0, "pack", (0,), (Slice(0, 0, 0, 4096), Slice(0, 1, 0, 4096)))
    assert policy.offload(pack) < short


def test_a_profile_says_how_long_a_copy_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CudaCopies", lambda device: HostCopies())
    job, device = ParallelConfig(offload="Auto", hardware="h100-80g"), torch.device("cuda")
    slow = msgspec.structs.replace(load_hardware("h100-80g"), host_gbps=1.0)
    profiled, shipped = (memory_policy(MODEL, job, 32000, device, given) for given in (lambda: slow, None))
    assert profiled.offload(ring(8192, 4)) == pytest.approx(shipped.offload(ring(8192, 4)) / 50)


@pytest.mark.parametrize(("offload", "device"), [("Off", "cuda"), ("Auto", "cpu")])
def test_nothing_is_moved_when_it_is_off_or_there_is_no_other_memory(offload: str, device: str) -> None:
    job = ParallelConfig(offload=offload, hardware="h100-80g")  # type: ignore[arg-type]
    assert memory_policy(MODEL, job, 32000, torch.device(device)).offload(ring(262_144, 4)) == 0


def test_a_tensor_that_is_saved_twice_goes_once_and_weights_stay() -> None:
    weight = torch.randn(6, 6, requires_grad=True)
    x = torch.randn(5, 6, requires_grad=True)
    offloader = Offloader(1.0, frozenset([weight.untyped_storage().data_ptr()]), HostCopies())
    with offloader.layer(1):
        y = x @ weight  # saves x and the weight
        z = (y * y).sum()  # saves y twice
    assert offloader.moved == offloader.seen == x.nbytes + y.nbytes
    z.backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, x.detach().T @ (2 * y.detach()))


def test_what_goes_stays_within_the_ratio() -> None:
    offloader = Offloader(0.3, frozenset(), HostCopies())
    tensors = [torch.randn(64, 8, requires_grad=True) for _ in range(40)]
    with offloader.layer(1):
        total = sum((t.exp().sum() for t in tensors), torch.zeros(()))
    assert offloader.seen == 40 * tensors[0].nbytes
    assert 0.25 * offloader.seen <= offloader.moved <= 0.3 * offloader.seen
    total.backward()
    assert all(t.grad is not None and torch.equal(t.grad, t.detach().exp()) for t in tensors)


def test_a_start_on_cuda_warns_once_that_it_is_untested(caplog: pytest.LogCaptureFixture) -> None:
    warn_untested.cache_clear()
    with caplog.at_level(logging.WARNING):
        for device in ("cpu", "cuda", "cuda"):
            warn_untested(device)
    assert [r.getMessage() for r in caplog.records] == [
        "training on CUDA is untested in this release: compare its losses with those of another trainer"
    ]
