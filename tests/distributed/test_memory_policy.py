"""Recompute and offload save memory and change no bit of a gradient; ranks are threads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor

from coxswain.cost.constants import load_hardware, scaled
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated
from coxswain.cost.ulysses import HeadExchange
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain.plan.head_groups import key_heads
from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.engine.offload import HostCopies
from coxswain_train.model.ring import Message
from tests.distributed import training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import Arrivals, Member, ThreadWorld, run_threads
from tests.layouts import layout_of

MODEL = replace(training.MODEL, layers=3)
STREAM = Stream(lengths=(5, 16, 29, 41), vocabulary=training.VOCABULARY)
GRADIENTS = len(parameter_specs(MODEL, training.VOCABULARY))  # the time of each one's hook counts as a wait
MODES: tuple[Recompute, ...] = ("None", "Selective", "Full")


@dataclass
class Counting(HostCopies):
    """Notes how many bytes go to host memory and come back."""

    saved: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)

    def save(self, x: Tensor) -> Tensor:
        self.saved.append(x.nbytes)
        return super().save(x)

    def load(self, host: Tensor) -> tuple[Tensor, None]:
        self.loaded.append(host.nbytes)
        return host, None


def gradients(
    world: ThreadWorld, layout: Layout, dtype: torch.dtype, recompute: Recompute, ratio: float, stream: Stream = STREAM,
    seed: int = 4,
) -> tuple[list[np.ndarray], Counting, int]:  # fmt: skip
    """This rank's gradients of one step, its copies to host memory, and its waits for peers."""
    copies = Counting()
    memory = MemoryPolicy(recompute, lambda _: ratio, copies)
    plan = plan_of(layout, stream, seed)
    _, owned = training.owned_gradient(world, MODEL, layout, stream, plan, dtype, memory)  # type: ignore[arg-type]
    return [gradient for _, gradient in owned], copies, len(world.clock.waits)


def plan_of(layout: Layout, stream: Stream, seed: int) -> Plan:
    keys = key_heads(MODEL, layout)
    return random_plan(stream.lengths, len(layout.replicas), seed, layout=layout, key_heads=keys)


# And the seed of a plan with packs and rings.
LAYOUTS = {
    "three replicas": (layout_of(*[[(1, 3)]] * 3), 11),
    "stages of tensor groups": (layout_of(*[[(2, 2), (1, 3)]] * 2), 4),
}


# Each layout in another precision.
QUICK = {("three replicas", torch.float32), ("stages of tensor groups", torch.float64)}
CASES = [
    pytest.param(*LAYOUTS[name], dtype, id=f"{name}, {dtype}", marks=[pytest.mark.slow] * ((name, dtype) not in QUICK))
    for name, dtype in itertools.product(LAYOUTS, (torch.float64, torch.float32))
]


@pytest.mark.parametrize(("layout", "seed", "dtype"), CASES)
def test_no_way_to_save_memory_changes_a_bit_of_a_gradient(layout: Layout, seed: int, dtype: torch.dtype) -> None:
    """Of packs and rings, tensor groups and stages; the rings of three replicas exchange heads."""
    ranks, (tasks, _) = len(layout.ranks()), plan_of(layout, STREAM, seed)
    assert {(t.kind, t.ulysses) for t in tasks} == {("pack", UNSET), ("ring", 2 if ranks == 3 else UNSET)}
    expected = run_threads(ranks, gradients, layout, dtype, "None", 0.0, STREAM, seed)
    for recompute, ratio in itertools.product(MODES, (0.0, 0.3, 1.0)):
        found = run_threads(ranks, gradients, layout, dtype, recompute, ratio, STREAM, seed)
        for (mine, copies, _), (theirs, _, _) in zip(found, expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)), (recompute, ratio)
            assert sum(copies.loaded) >= sum(copies.saved)
        goes = ratio == 1 or (ratio > 0 and recompute != "Full")  # of two equal inputs of layers none is 0.3
        assert any(copies.saved for _, copies, _ in found) == goes


@pytest.mark.parametrize("recompute", MODES)
@pytest.mark.parametrize(("seed", "size"), [(4, 1), (7, 2)], ids=["ring", "heads"])
def test_members_of_a_ring_send_what_the_cost_model_counts(
    seed: int, size: int, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes for each mode of recompute; only the gradients' way home to their keys is counted with the last hop."""
    stream, two, sent = Stream(lengths=(64,), vocabulary=training.VOCABULARY), layout_of(*[[(1, 3)]] * 2), [0, 0]

    def start(self: Member, sends: Sequence[Message], receives: Sequence[Message]) -> Arrivals:
        sent[self.rank] += sum(x.nbytes for _, x in sends)
        return ended(self, sends, receives)

    ended = Member.start
    monkeypatch.setattr(Member, "start", start)
    assert (plan_of(two, stream, seed)[0][0].ulysses or 1) == size
    run_threads(2, gradients, two, torch.float32, recompute, 0.0, stream, seed)
    rates = replace(load_hardware("cpu").rates, kv_element_bytes=4, inside_node_gbps=1e-9)  # a second a byte
    exchange = HeadExchange("Ulysses", 2, MODEL.heads / MODEL.kv_heads, 2, recompute)
    cost, home = (
        CostModel(repeated(scaled(rates, MODEL), recompute), exchange),
        CostModel(scaled(rates, MODEL)).kv(True) / 3,
    )
    each = cost.kv(True) + home if size == 1 else cost.exchanged(2, True)
    assert sent == pytest.approx([32 * each] * 2)


@pytest.mark.parametrize(("recompute", "forwards"), [("None", 1), ("Selective", 1), ("Full", 2)])
def test_a_ring_repeats_its_forward_hops_in_backward_only_under_full_recompute(
    recompute: Recompute, forwards: int
) -> None:
    """A layer has a hop a member forward, and one more backward: the way home of the gradients."""
    stream = Stream(lengths=(64,), vocabulary=training.VOCABULARY)
    two = layout_of(*[[(1, 3)]] * 2)
    assert plan_of(two, stream, 4)[0][0].kind == "ring"
    for _, _, waits in run_threads(2, gradients, two, torch.float32, recompute, 0.0, stream):
        assert waits == MODEL.layers * (2 * forwards + 3) + GRADIENTS


@pytest.mark.parametrize(("recompute", "forwards"), [("None", 1), ("Selective", 2), ("Full", 2)])
def test_any_recompute_repeats_the_exchanges_of_heads_of_forward(recompute: Recompute, forwards: int) -> None:
    """One before attention and one after it. What attention itself had found stays with `Selective`."""
    stream = Stream(lengths=(64,), vocabulary=training.VOCABULARY)
    two = layout_of(*[[(1, 3)]] * 2)
    assert plan_of(two, stream, 7)[0][0].ulysses == 2
    for _, _, waits in run_threads(2, gradients, two, torch.float32, recompute, 0.0, stream, 7):
        assert waits == MODEL.layers * 2 * (forwards + 1) + GRADIENTS
