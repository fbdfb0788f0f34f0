"""What a job's policy makes of recompute and offload, and the warning of a start on CUDA."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost import Constants
from coxswain.cost.constants import load_hardware
from coxswain.cost.hardware import Tables, attention_flops
from coxswain.cost.offload import least_share, offload_ratio, offload_shares
from coxswain.plan.values import Slice, Task
from coxswain_train.engine import memory
from coxswain_train.engine.memory import (
    MemoryPolicy,
    Recompute,
    TaskMemory,
    drawing_again,
    generators_of,
    memory_policy,
)
from coxswain_train.engine.offload import HostCopies, Offloader
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.llama import AttentionFn, Rotary
from coxswain_train.worker.worker import warn_untested

MODEL = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, feed_forward=11008)
TABLE = ((128, 100.0), (500, 150.0), (2000, 200.0), (8000, 2000.0))  # tokens and milliseconds of attention
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


def test_the_ratio_goes_by_the_measured_seconds_of_attention_where_there_is_a_table() -> None:
    """Of the 35 ms of 1,000 tokens forward takes 10: of each of 32 layers 312 us, beside 1 ms of matrix products."""
    measured = msgspec.structs.replace(CONSTANTS, tables=Tables(attention=((1000, 35.0), (4000, 560.0))))
    assert offload_ratio([1000], measured, 32, 1000, 1e8) == pytest.approx((1 + 10 / 32) / 10)
    assert offload_ratio([1000] * 3, measured, 32, 1000, 1e8) == pytest.approx((1 + 10 / 32) / 10)
    assert offload_ratio([2000], measured, 32, 1000, 1e8) == pytest.approx((2 + 40 / 32) / 20)
    assert offload_ratio([500], measured, 32, 1000, 1e8) == offload_ratio([1000], measured, 32, 1000, 1e8), (
        "in proportion"
    )


def test_no_task_moves_less_than_the_least_share_where_a_measured_token_of_a_long_sequence_takes_less() -> None:
    """Sequences of 2,000 tokens attend at a tenth of a millisecond a token, shorter ones and longer ones for longer."""
    shipped, job = load_hardware("h100-80g"), ParallelConfig(offload="Auto")
    table = tuple((tokens, attention_flops(MODEL) * tokens**2 * 1e-9 / ms) for tokens, ms in TABLE)
    profile = msgspec.structs.replace(shipped, rates=msgspec.structs.replace(shipped.rates, attention_table=table))
    share, least = offload_shares(profile, MODEL, 32000, "None"), least_share(MODEL, job, 32000, "None", profile)
    assert least == share([2000]) < share([1]) and least < share([8000])
    assert all(least <= share([tokens] * times) + 1e-12 for tokens in range(1, 20_000, 97) for times in (1, 3))
    assert least != least_share(MODEL, msgspec.structs.replace(job, hardware="h100-80g"), 32000, "None")


def test_the_share_that_goes_in_any_task_is_that_of_a_single_token_and_more_where_less_is_kept() -> None:
    job, found = ParallelConfig(offload="Auto", hardware="h100-80g"), list[float]()
    recomputes: tuple[Recompute, ...] = ("None", "Selective", "Full")
    for recompute in recomputes:
        share, least = (
            offload_shares(load_hardware("h100-80g"), MODEL, 32000, recompute),
            least_share(MODEL, job, 32000, recompute),
        )
        assert least == share([1]) <= share([4096]) <= 1
        assert share([1] * 9) == pytest.approx(least)
        found.append(least)
    assert found[0] < found[1] <= found[2] and least_share(MODEL, ParallelConfig(), 32000, "None") == 0.0


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


def test_a_job_that_recomputes_does_so_beside_its_copies_and_moves_more_of_the_less_that_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "CudaCopies", lambda device: HostCopies())
    modes: tuple[Recompute, ...] = ("None", "Selective", "Full")
    jobs = [ParallelConfig(offload="Auto", hardware="h100-80g", recompute=mode) for mode in modes]
    policies = [memory_policy(MODEL, job, 32000, torch.device("cuda")) for job in jobs]
    assert tuple(policy.recompute for policy in policies) == modes
    plain, selective, full = (policy.offload(ring(1024, 4)) for policy in policies)
    assert 0 < plain < selective <= full <= 1


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


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_a_forward_without_a_backward_leaves_nothing_behind(ratio: float) -> None:
    """Where a step breaks off. Half of what `tanh` and `exp` save is their own output; some is no dense tensor."""
    weight = torch.randn(6, 6, requires_grad=True)
    offloader = Offloader(ratio, frozenset([weight.untyped_storage().data_ptr()]), HostCopies())
    with offloader.layer(1):
        hidden = torch.randn(5, 6) @ weight
        made = [hidden.tanh(), hidden.exp(), hidden.tanh()[:, ::2].exp(), hidden.exp()]
        total = torch.cat([x * x for x in made], 1).sum()
    found = [StorageWeakRef(x.untyped_storage()) for x in (hidden, *made)]  # type: ignore[no-untyped-call]
    del hidden, made, total, offloader
    gc.collect()
    assert [reference.expired() for reference in found] == [True] * 5  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("elements", "goes"), [(15, False), (16, True)])
def test_a_tensor_goes_from_the_smallest_size_on_that_is_worth_a_copy(elements: int, goes: bool) -> None:
    copies, x = HostCopies(), torch.randn(elements, requires_grad=True)
    copies.smallest = 16 * x.element_size()
    offloader = Offloader(1.0, frozenset(), copies)
    with offloader.layer(1):
        x.exp().sum().backward()
    assert (offloader.seen, offloader.moved) == (goes * x.nbytes, goes * x.nbytes)


@dataclass
class Layers(HostCopies):
    """Notes of which layer it is that goes and comes back."""

    layer: int = 0
    saved: dict[int, int] = field(default_factory=dict)  # layer, by address
    loaded: list[int] = field(default_factory=list)

    def save(self, x: Tensor) -> Tensor:
        host = super().save(x)
        self.saved[host.data_ptr()] = self.layer
        return host

    def load(self, host: Tensor) -> tuple[Tensor, None]:
        self.loaded.append(self.saved[host.data_ptr()])
        return host, None


def test_what_a_layer_saved_comes_back_once_while_the_layer_behind_it_runs_backward() -> None:
    copies, seen, product = Layers(), list[set[int]](), torch.ones(4)
    offloader = Offloader(1.0, frozenset(), copies)
    for layer in (1, 2, 3):
        copies.layer, x = layer, torch.full((4,), 2.0, requires_grad=True)
        x.register_hook(lambda _: seen.append(set(copies.loaded)))
        with offloader.layer(layer):
            product = product * (x * x)  # saves x twice
    product.sum().backward()
    assert seen == [{3, 2}, {3, 2, 1}, {3, 2, 1}]
    assert sorted(copies.loaded) == sorted(copies.saved.values())


@pytest.mark.parametrize("view", [lambda x: x.expand(8, 4), lambda x: x[:, ::2]], ids=["repeated", "with gaps"])
def test_a_tensor_whose_memory_is_less_or_more_than_its_elements_stays(view: Callable[[Tensor], Tensor]) -> None:
    offloader, x = Offloader(1.0, frozenset(), HostCopies()), torch.full((1, 4), 3.0, requires_grad=True)
    with offloader.layer(1):
        view(x).square().sum().backward()
    assert offloader.seen == offloader.moved == 0
    assert x.grad is not None and x.grad.unique().tolist() in ([48.0], [0.0, 6.0])


@dataclass
class Fetched(HostCopies):
    """Notes the memory of what comes back."""

    there: list[StorageWeakRef] = field(default_factory=list)

    def load(self, host: Tensor) -> tuple[Tensor, None]:
        found = host.clone()
        self.there.append(StorageWeakRef(found.untyped_storage()))  # type: ignore[no-untyped-call]
        return found, None


def test_what_has_come_back_is_given_up_with_its_last_use() -> None:
    copies, x = Fetched(), torch.ones(3, requires_grad=True)
    offloader = Offloader(1.0, frozenset(), copies)
    with offloader.layer(1):
        (x * x).sum().backward()  # saves x twice
    assert offloader.moved and [each.expired() for each in copies.there] == [True]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("stack", "gone"), [(1, [1]), (2, [1, 1]), (3, [1, 2, 2])])
def test_all_layers_go_but_the_last_of_several_whose_backward_comes_first(stack: int, gone: list[int]) -> None:
    def layer(x: Tensor, *_: Any) -> Tensor:
        return x.exp()  # saves one tensor

    x, offloader, found = torch.zeros(4, requires_grad=True), Offloader(1.0, frozenset(), HostCopies()), []
    memory = TaskMemory("None", offloader, stack)
    for _ in range(stack):
        x = memory.run_layer(layer, x, (x, x), pack_attention([4]))
        found.append(offloader.moved // x.nbytes)
    assert found == gone


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_memory_that_changes_behind_forward_spoils_no_gradient(ratio: float) -> None:
    """What went has the values of forward. What stayed is refused, as torch does without hooks."""
    x = torch.zeros(3, requires_grad=True)
    with Offloader(ratio, frozenset(), HostCopies()).layer(1):
        y = x.exp()  # saves its output
        total = y.mul_(5.0).sum()
    if ratio:
        total.backward()
        assert x.grad is not None and x.grad.tolist() == [5.0] * 3
    else:
        with pytest.raises(RuntimeError, match=r"shape \[3\] that backward needs was changed in place"):
            total.backward()


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize(("ratio", "pinned"), [(0.0, False), (1.0, False), (1.0, True)])
def test_a_weight_is_refused_where_it_stayed_and_changed_behind_forward_not_before(
    ratio: float, pinned: bool, changed: bool
) -> None:
    x, weight = torch.ones(3, requires_grad=True), torch.ones(3).mul_(5.0)  # as an optimizer's step changes it
    stays = frozenset({weight.untyped_storage().data_ptr()} if pinned else ())
    with Offloader(ratio, stays, HostCopies()).layer(1):
        total = (x * weight).sum()
    if changed:
        weight.mul_(2.0)
    if changed and (pinned or not ratio):
        with pytest.raises(RuntimeError, match=r"shape \[3\] that backward needs was changed in place"):
            total.backward()
    else:
        total.backward()
        assert x.grad is not None and x.grad.tolist() == [5.0] * 3


def test_weights_and_rotary_tables_stay_for_all_layers_of_a_task() -> None:
    weight, tables, x = (
        torch.ones(4, requires_grad=True),
        (torch.ones(4), torch.ones(4)),
        torch.ones(4, requires_grad=True),
    )

    def layer(x: Tensor, rotary: Rotary, _: AttentionFn) -> Tensor:
        return x * weight * rotary[0] * rotary[1]  # saves all but the last product

    model = SimpleNamespace(weights=lambda: {"weight": weight}, stack=[layer])
    task = MemoryPolicy("None", lambda _: 1.0).begin(ring(4, 1), model, tables)  # type: ignore[arg-type]
    task.run_layer(layer, x, tables, pack_attention([4]))
    assert task.offloader is not None and task.offloader.seen == x.nbytes


@pytest.mark.parametrize("recompute", ["None", "Selective", "Full"])
def test_a_layer_trains_also_where_its_input_takes_no_gradient(recompute: Recompute) -> None:
    """As behind an embedding that is a buffer."""
    weight, x = torch.full((4,), 3.0, requires_grad=True), torch.full((4,), 2.0)
    TaskMemory(recompute, None, 1).run_layer(lambda x, *_: x * weight, x, (x, x), pack_attention([4])).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 4


def test_a_tensor_that_changes_between_two_savings_goes_twice() -> None:
    first, second, x = (torch.full((3,), value, requires_grad=True) for value in (5.0, 7.0, 2.0))
    with Offloader(1.0, frozenset(), HostCopies()).layer(1):
        y = x * 1.0
        total = (y * first).sum()
        y.add_(1.0)
        total = total + (y * second).sum()
    total.backward()
    assert first.grad is not None and second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([2.0] * 3, [3.0] * 3)


@pytest.mark.parametrize(
    ("x", "first", "second", "saved"),
    [
        (3.0 + 4.0j, lambda y: y, Tensor.conj, (3.0 - 4.0j, 3.0 + 4.0j)),  # a gradient is of the conjugate
        (3.0 + 4.0j, lambda y: y.imag, lambda y: y.conj().imag, (4.0, -4.0)),
        (1.0, lambda y: y, lambda y: y.view(torch.int32), (1.0, 127.0 * 2**23)),
    ],
    ids=["conjugate", "negative", "another type"],
)
def test_two_readings_of_one_memory_come_back_each_with_its_own_values(
    x: complex, first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], saved: tuple[complex, complex]
) -> None:
    weights = [torch.ones(1, dtype=torch.tensor(each).dtype, requires_grad=True) for each in saved]
    with Offloader(1.0, frozenset(), HostCopies()).layer(1):
        y = torch.tensor([x], requires_grad=True) * 1.0
        total = first(y) * weights[0] + second(y) * weights[1]
        (total.real if total.is_complex() else total).sum().backward()
    assert [w.grad.item() for w in weights if w.grad is not None] == [*saved]


def test_two_parts_of_one_tensor_go_each_with_its_own_values() -> None:
    weights = [torch.full((3,), value, requires_grad=True) for value in (5.0, 7.0)]
    with Offloader(1.0, frozenset(), HostCopies()).layer(1):
        parts = (torch.arange(6.0, requires_grad=True) * 1.0).chunk(2)
        total = torch.stack([(part * weight).sum() for part, weight in zip(parts, weights, strict=True)]).sum()
    total.backward()
    assert [w.grad.tolist() for w in weights if w.grad is not None] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("view", [lambda y: y.T, lambda y: y[:2]], ids=["other strides", "another shape"])
def test_a_tensor_and_a_view_that_begins_with_it_come_back_each_with_its_own_values(
    view: Callable[[Tensor], Tensor],
) -> None:
    with Offloader(1.0, frozenset(), HostCopies()).layer(1):
        y = torch.arange(9.0, requires_grad=True).view(3, 3) * 1.0
        weights = [torch.ones_like(each, requires_grad=True) for each in (y, view(y))]
        total = (y * weights[0]).sum() + (view(y) * weights[1]).sum()
    total.backward()
    for weight, saved in zip(weights, (y, view(y)), strict=True):
        assert weight.grad is not None and torch.equal(weight.grad, saved.detach())


def test_a_layer_that_attends_twice_gets_each_result_back_in_its_place() -> None:
    def layer(x: Tensor, _: Rotary, attend: AttentionFn) -> Tensor:
        heads = x.unflatten(1, (2, 4)).transpose(0, 1)
        once = attend(heads, heads, heads)
        return attend(2 * once, heads, once).transpose(0, 1).flatten(1)

    found = []
    for recompute in ("None", "Selective"):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
        out = TaskMemory(recompute, None, 1).run_layer(layer, x, (x, x), pack_attention([5]))  # type: ignore[arg-type]
        out.square().sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_what_is_drawn_again_on_a_device_comes_from_its_own_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    own, device = torch.Generator().manual_seed(1), torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(), own))
    states = [generator.get_state() for generator in generators_of(device)]
    first, second = torch.rand(3, generator=own), torch.rand(2, generator=torch.Generator().set_state(own.get_state()))
    with drawing_again(states, device):
        assert torch.equal(torch.rand(3, generator=own), first)
    assert torch.equal(torch.rand(2, generator=own), second)


def test_a_start_on_cuda_warns_once_that_it_is_untested(caplog: pytest.LogCaptureFixture) -> None:
    warn_untested.cache_clear()
    with caplog.at_level(logging.WARNING):
        for device in ("cpu", "cuda", "cuda"):
            warn_untested(device)
    assert [r.getMessage() for r in caplog.records] == [
        "training on CUDA is untested in this release: compare its losses with those of another trainer"
    ]
