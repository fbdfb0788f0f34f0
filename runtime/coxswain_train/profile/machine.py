"""Measures with the engine itself: its kernels, its rings, its steps, on all ranks at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.cost.fit import Step
from coxswain.layout import Device, uniform_layout
from coxswain.plan.chunks import ring_slices
from coxswain.plan.values import Operation, Slice, Task
from coxswain_train.engine.engine import Engine, StepInput
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.step import Batch, attend_of, parts
from coxswain_train.model.attention import TaskAttention, pack_attention
from coxswain_train.model.ring import Exchange, Message
from coxswain_train.parallel.process_groups import ProcessGroups

_ALONE = 4  # degree of the ring of a rank that has no peers

OPTIMIZER = OptimizerConfig(learning_rate=1e-4, gradient_clip=1.0, weight_decay=0.1, schedule="Constant")


class RankMachine:
    """One rank's device; as `Machine`. A replica of one device a rank. `longest`: positions that the model has; 0: any."""

    def __init__(
        self, world: ProcessGroups, model: ModelConfig, device: torch.device, dtype: torch.dtype, memory: MemoryPolicy,
        longest: int = 0,
    ) -> None:  # fmt: skip
        layout = uniform_layout([Device(0, rank) for rank in range(world.ranks)], model.layers)
        self.ranks, self._world, self._model, self.device, self._dtype = world.ranks, world, model, device, dtype
        self._seat = layout.ranks()[world.rank]
        self.engine = Engine(
            model, model.vocabulary, OPTIMIZER, 1 << 30, layout, self._seat, world, device, dtype, memory=memory
        )
        self.engine.initialise(seed=1)
        self._done, self._longest = 0, longest

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.engine.model.weights().values())

    @property
    def degree(self) -> int:
        """A rank alone runs rings against itself."""
        return self.ranks if self.ranks > 1 else _ALONE

    def attention(self, tokens: int, calls: int) -> float:
        return self.attended(pack_attention([tokens]), tokens, calls)

    def ring(self, tokens: int, calls: int) -> float:
        members = tuple(range(self.degree))
        task = Task(0, "ring", members, tuple(ring_slices([0], [tokens * self.degree], members)))
        exchange = self._world.exchange if self.ranks > 1 else _itself
        attend = attend_of(parts([task], self._seat.replica)[0], self._seat.replica, exchange)
        return self.attended(attend, tokens, calls)

    def exchange(self, size: int, calls: int) -> float:
        """Bytes to the next rank, from the one before."""
        ring, me = self._world.exchange(tuple(range(self.ranks))), self._world.rank
        out, into = (torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(2))

        def once() -> None:
            ring.start([((me + 1) % self.ranks, out)], [((me - 1) % self.ranks, into)]).wait()

        return self.timed(once, calls)

    def step(self, step: Step) -> float:
        work = self._work(step)
        seconds = self.timed(lambda: self.engine.step(work, time.perf_counter()), 1)
        self._done += 1
        return seconds

    def attended(self, attend: TaskAttention, tokens: int, calls: int) -> float:
        """Seconds of the forward and backward of one layer's attention."""
        heads, kv, size = self._model.heads, self._model.kv_heads, self._model.size_of_head
        query, key, value = (self._noise(n, tokens, size).requires_grad_() for n in (heads, kv, kv))
        gradient = self._noise(heads, tokens, size)

        def once() -> None:
            torch.autograd.grad(attend(query, key, value), (query, key, value), gradient)

        return self.timed(once, calls)

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self._dtype)

    def timed(self, once: Callable[[], object], calls: int) -> float:
        """Seconds of one call: the mean over ranks, which begin together."""
        self._world.scalars([0.0])
        self._synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            once()
        self._synchronize()
        return mean(row[0] for row in self._world.scalars([(time.perf_counter() - began) / calls]))

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _work(self, step: Step) -> StepInput:
        tasks = list(tasks_of(step, self.ranks))
        mine = parts(tasks, self._seat.replica)
        slices = [s for part in mine.values() for s in part.slices]
        tokens = sum(s.stop - s.start for s in slices)
        ids = torch.randint(self._model.vocabulary, (tokens,), device=self.device)
        positions = torch.cat([torch.arange(s.start, s.stop, device=self.device) for s in slices])
        if self._longest:  # a ring of all ranks is longer than what a job trains on
            positions = positions % self._longest
        operations = [Operation(kind, index) for index in mine for kind in ("F", "B")]
        total = sum(s.stop - s.start for task in tasks for s in task.slices)
        return StepInput(self._done, mine, operations, Batch(ids, ids, positions), tokens, total, self._done)


def tasks_of(step: Step, replicas: int) -> Iterator[Task]:
    """The tasks of a step on all replicas."""
    index = sequence = 0
    for replica in range(replicas):
        for pack in step.packs:
            slices = tuple(Slice(replica, sequence + i, 0, length) for i, length in enumerate(pack))
            yield Task(index, "pack", (replica,), slices)
            index, sequence = index + 1, sequence + len(pack)
    if step.ring:
        members, lengths = tuple(range(replicas)), [0] * sequence + [step.ring]
        yield Task(index, "ring", members, tuple(ring_slices([sequence], lengths, members)))


@dataclass(frozen=True, slots=True)
class _Itself:
    """The exchange of a rank without peers: what it would receive is there at once."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Itself:
        for (_, sent), (_, received) in zip(sends, receives, strict=False):
            if sent.shape == received.shape:
                received.copy_(sent)
        return self

    def wait(self) -> None: ...

    def arrived(self) -> None: ...


def _itself(_: tuple[int, ...]) -> Exchange:
    return _Itself()
