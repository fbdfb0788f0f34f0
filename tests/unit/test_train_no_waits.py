"""Between the operations of a step the host does not wait for the device: it would wait for hops of which peers wait for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coxswain_train.model.attention import PackKernel
from coxswain_train.model.loss import IGNORED, IdRange, linear_cross_entropy
from coxswain_train.model.ulysses import HeadGroup

WAITING = ("aten.nonzero", "aten._local_scalar_dense", "aten.masked_select")


class Watched(TorchDispatchMode):
    """Notes the operators whose result's size or value the host needs at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(function).startswith(WAITING):
            self.waits.append(str(function))
        return function(*args, **(kwargs or {}))


class Alone:
    """A tensor group's part of a sum that is whole."""

    index, degree = 0, 1

    def sum(self, x: Tensor) -> None: ...

    def maximum(self, x: Tensor) -> None: ...


@pytest.mark.parametrize("ids", [None, IdRange(Alone(), 4)])
def test_the_loss_is_computed_without_a_wait_for_the_device(ids: IdRange | None) -> None:
    g = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(n, 8, generator=g, requires_grad=True) for n in (30, 19))
    labels = (torch.arange(30) * 5 % 19).where(torch.arange(30) % 4 > 0, IGNORED)
    with Watched() as watched:
        linear_cross_entropy(hidden, weight, labels, 7, ids).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            linear_cross_entropy(hidden, weight, labels, 7, ids)
    assert watched.waits == []
    with watched:
        assert (labels != IGNORED).nonzero().numel() == 22
    assert watched.waits == ["aten.nonzero.default"]


def test_bounds_of_packs_and_orders_of_head_groups_go_to_the_device_from_pinned_memory_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, pinned, gone = torch.device("cuda"), list[int](), list[tuple[bool, bool]]()

    def pin(x: Tensor) -> Tensor:
        pinned.append(x.data_ptr())
        return x

    def to(x: Tensor, where: torch.device, non_blocking: bool = False) -> Tensor:
        assert where == device
        gone.append((x.data_ptr() in pinned, non_blocking))
        return x

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    bounds, _, longest, _ = PackKernel((3, 4)).varlen_shape(SimpleNamespace(device=device))  # type: ignore[arg-type]
    order, back = HeadGroup(0, ([((0, 2), (6, 8)), ((2, 6),)],), None).token_order(device)  # type: ignore[arg-type]
    assert gone == [(True, True)] * 3
    assert (bounds.tolist(), bounds.dtype, longest) == ([0, 3, 7], torch.int32, 4)
    assert order[back].tolist() == list(range(8))
