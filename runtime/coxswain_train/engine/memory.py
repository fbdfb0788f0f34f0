"""What a layer keeps for its backward: everything, or what it is recomputed from; on the device, or in host memory.

Neither changes a bit of any gradient. `Full` keeps a layer's input alone; in a ring its attention repeats the hops of
forward within backward, on every member at the same place of its operations. `Selective` keeps the attention's output
and log-sum-exp as well, so no hop and no attention is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost.constants import Hardware, load_hardware
from coxswain.cost.offload import offload_shares
from coxswain.plan.values import Task
from coxswain_train.engine.offload import Copies, CudaCopies, HostCopies, Offloader
from coxswain_train.model.attention import Kept, Repeated, TaskAttention
from coxswain_train.model.llama import Decoder, Layer, Rotary

Recompute = Literal["None", "Selective", "Full"]


def no_offload(_: Task) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """How one rank saves memory. `offload`: the share of a task's activations that goes to host memory, 0 to 1."""

    recompute: Recompute = "None"
    offload: Callable[[Task], float] = no_offload
    copies: Copies = field(default_factory=HostCopies)

    def begin(self, task: Task, model: Decoder, rotary: Rotary) -> TaskMemory:
        """For one forward of a task. Weights and rotary tables stay where they are."""
        ratio = self.offload(task)
        if ratio <= 0:
            return TaskMemory(self.recompute, None, len(model.stack))
        stays = (x.untyped_storage().data_ptr() for x in (*model.weights().values(), *rotary))
        return TaskMemory(self.recompute, Offloader(ratio, frozenset(stays), self.copies), len(model.stack))


def memory_policy(
    model: ModelConfig, parallel: ParallelConfig, vocabulary: int, device: torch.device,
    profile: Callable[[], Hardware] | None = None,
) -> MemoryPolicy:  # fmt: skip
    """What the job asks for. A CPU has no other memory to move activations to. `profile`: reads the job's cost data."""
    if parallel.offload == "Off" or device.type != "cuda":
        return MemoryPolicy(parallel.recompute)
    hardware = profile() if profile else load_hardware(parallel.hardware)
    share = offload_shares(hardware, model, vocabulary, parallel.recompute)

    def ratio(task: Task) -> float:
        lengths: Counter[int] = Counter()
        for s in task.slices:
            lengths[s.sequence] += s.stop - s.start
        return share(list(lengths.values()))

    return MemoryPolicy(parallel.recompute, ratio, CudaCopies(device))


@dataclass(slots=True)
class TaskMemory:
    """Runs the layers of one forward."""

    recompute: Recompute
    offloader: Offloader | None
    stack: int
    _done: int = 0

    def run_layer(self, layer: Layer, hidden: Tensor, rotary: Rotary, attend: TaskAttention) -> Tensor:
        """One layer. The last one's activations stay on the device: its backward comes first."""
        self._done += 1
        with self._hooks():
            if self.recompute == "None" or not torch.is_grad_enabled():
                return layer(hidden, rotary, attend)
            if not hidden.requires_grad:  # else the layer would be no part of the graph
                hidden = hidden.detach().requires_grad_()
            selective = self.recompute == "Selective"
            return _Recomputed.apply(hidden, rotary, layer, attend, selective, *_learned(rotary))  # type: ignore[no-any-return]

    def _hooks(self) -> AbstractContextManager[Any]:
        if self.offloader is None or self._done == self.stack > 1:
            return nullcontext()
        return self.offloader.layer(self._done)


def _learned(rotary: Rotary) -> list[Tensor]:
    """What follows from weights, as a model of the user's own may have it. All layers get it, so its gradient has many parts."""
    found = [x for x in rotary if isinstance(x, Tensor) and x.requires_grad] if isinstance(rotary, tuple) else []
    return list({id(x): x for x in found}.values())


class _Recomputed(torch.autograd.Function):
    """A layer that is computed again in backward, from the same random numbers.

    The gradients of its parameters accumulate within, as without recompute. `learned`: what of `rotary` has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rotary: Rotary, layer: Layer, attend: TaskAttention, keep: bool, *learned: Tensor
    ) -> Tensor:
        kept: list[tuple[Tensor, Tensor]] = []
        ctx.random = [generator.get_state() for generator in generators_of(hidden.device)]
        out = layer(hidden, rotary, replace(attend, kernel=Kept(attend.kernel, kept)) if keep else attend)
        ctx.save_for_backward(hidden, *(tensor for pair in kept for tensor in pair))
        ctx.layer, ctx.rotary, ctx.attend, ctx.keep = layer, rotary, attend, keep
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *flat = ctx.saved_tensors
        attend: TaskAttention = ctx.attend
        if ctx.keep:
            attend = replace(attend, kernel=Repeated(attend.kernel, list(zip(flat[::2], flat[1::2], strict=True))))
        learned = {id(x): x.detach().requires_grad_() for x in _learned(ctx.rotary)}
        with torch.enable_grad(), drawing_again(ctx.random, hidden.device):
            again = hidden.detach().requires_grad_()
            rotary = tuple(learned.get(id(x), x) for x in ctx.rotary) if learned else ctx.rotary
            out = ctx.layer(again, rotary, attend)
            torch.autograd.backward(out, grads[0])
        return again.grad, None, None, None, None, *(x.grad for x in learned.values())


@contextmanager
def drawing_again(states: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    """Layers draw once more what they drew from these states on; then all goes on as before."""
    generators = generators_of(device)
    now = [generator.get_state() for generator in generators]
    _set_states(generators, states)
    yield
    _set_states(generators, now)


def generators_of(device: torch.device) -> list[torch.Generator]:
    """Those that a layer may draw from."""
    return [torch.default_generator, *([torch.cuda.default_generators[device.index]] if device.type == "cuda" else [])]


def _set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
