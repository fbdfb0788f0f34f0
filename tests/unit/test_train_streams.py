"""Copies beside the work of a CUDA device, by what is over before what: streams are fakes that note it, tensors the CPU's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from coxswain_train.checkpoint.snapshots import CudaSide
from coxswain_train.engine.offload import CudaCopies

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Moment:
    """The end of what a stream had to do; as an event. `over`: by stream, how much of its work is over then."""

    stream: Stream
    over: Counter[Stream]

    def after(self, other: Moment) -> bool:
        return self.over[other.stream] >= other.over[other.stream]

    def wait(self) -> None:
        self.stream.cuda.current.wait_event(self)


@dataclass(eq=False)
class Stream:
    cuda: Cuda
    over: Counter[Stream] = field(default_factory=Counter)

    def work(self) -> Moment:
        self.over[self] += 1
        return self.record_event()

    def record_event(self) -> Moment:
        return Moment(self, self.over.copy())

    def wait_event(self, moment: Moment) -> None:
        self.over |= moment.over  # the larger number of each

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


@dataclass(eq=False)
class Cuda:
    copies: list[Moment] = field(default_factory=list)
    kept: list[tuple[int, Stream]] = field(default_factory=list)  # memory that a stream uses, by address
    pinned: set[int] = field(
        default_factory=set
    )  # addresses of the host's memory from which or to which copies need no wait

    def __post_init__(self) -> None:
        self.main = self.current = Stream(self)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main

    def room(self, like: Tensor, device: torch.device | str, pin_memory: bool = False) -> Tensor:
        made = torch.zeros(like.shape)
        self.pinned |= {made.data_ptr()} if pin_memory else set()
        return made

    def copy(self, into: Tensor, of: Tensor, non_blocking: bool = False) -> Tensor:
        assert non_blocking, "the host would wait"
        into[...] = of
        self.copies.append(self.current.work())
        return into


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(fake))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: fake.current)
    monkeypatch.setattr(torch.cuda, "stream", fake.on)
    monkeypatch.setattr(torch, "empty_like", fake.room)
    monkeypatch.setattr(Tensor, "copy_", lambda into, of, non_blocking=False: fake.copy(into, of, non_blocking))
    monkeypatch.setattr(Tensor, "record_stream", lambda x, stream: fake.kept.append((x.data_ptr(), stream)))
    return fake


def test_what_goes_to_the_host_waits_for_what_made_it_and_is_back_before_it_is_used(cuda: Cuda) -> None:
    copies, x = CudaCopies(CPU), torch.arange(4.0)
    made, host, beside = cuda.main.work(), copies.save(x), cuda.main.work()
    there, arriving = cuda.copies[-1], copies.load(host)
    back, meanwhile = cuda.copies[-1], cuda.main.work()
    found, used = copies.arrive(arriving), cuda.main.work()
    assert there.after(made) and back.after(there) and used.after(back)
    assert not beside.after(there) and not meanwhile.after(back), "the device computes beside both copies"
    assert len({made.stream, there.stream, back.stream}) == 3
    assert cuda.kept == [(x.data_ptr(), there.stream), (found.data_ptr(), cuda.main)]
    assert torch.equal(found, x) and cuda.pinned == {host.data_ptr()}


def test_a_snapshot_is_of_the_work_before_it_and_ends_before_the_work_that_is_to_wait_for_it(cuda: Cuda) -> None:
    side, hosts = CudaSide(CPU), [torch.zeros(3), torch.zeros(2)]
    made = cuda.main.work()
    copied, beside = side.copy([(hosts[0], torch.ones(3)), (hosts[1], torch.ones(2))]), cuda.main.work()
    copied.wait()
    after = cuda.main.work()
    assert all(copy.after(made) and after.after(copy) and not beside.after(copy) for copy in cuda.copies)
    assert [host.tolist() for host in hosts] == [[1.0] * 3, [1.0] * 2]
