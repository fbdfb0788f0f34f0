"""What a world makes, sends, and waits for: on a `torch.distributed` that notes it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coxswain_train.parallel import process_groups
from coxswain_train.parallel.clock import DeviceClock
from coxswain_train.parallel.process_groups import (
    ProcessGroups,
    RingTransfer,
    WorldAborter,
    join,
    leave_world,
    listen,
)
from tests.unit.nccl_double import Nccl, joined

HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    return joined(monkeypatch, 3, alone=True)[0]


@pytest.fixture
def world(nccl: Nccl) -> ProcessGroups:
    return ProcessGroups(None, 1, 3, torch.device("cpu"))  # type: ignore[arg-type]


def test_the_store_of_a_world_takes_every_rank_and_waits_half_an_hour_for_a_peer_but_not_for_them_to_begin() -> None:
    first = listen("127.0.0.1", 2)
    second = join("127.0.0.1", first.port, 2)
    second.set("a", "b")
    assert first.get("a") == b"b"
    assert first.timeout == second.timeout == HALF_AN_HOUR


@pytest.mark.parametrize("ranks", [3, 100])
def test_every_group_waits_half_an_hour_for_a_peer(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """The coordinator judges shorter stalls. torch's own patience is shorter, and ends the world."""
    nccl, make = joined(monkeypatch, ranks, alone=True)
    make(1).tensor_group((0, 1))
    assert nccl.patience == [HALF_AN_HOUR] * (3 if ranks == 3 else 5)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_a_world_talks_over_what_its_device_has(monkeypatch: pytest.MonkeyPatch, device: str, backend: str) -> None:
    nccl, make = joined(monkeypatch, 3, alone=True, device=torch.device(device))
    monkeypatch.setattr(DeviceClock, "of", lambda _: DeviceClock())
    with suppress(AssertionError, RuntimeError):  # there may be no such device to send from
        make(1)
    assert nccl.backends == [backend]


def test_what_a_world_sends_is_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made, zeros = list[Any](), torch.zeros

    def noted(size: int, device: torch.device | None = None) -> torch.Tensor:
        made.append(device)
        return zeros(size)

    there = torch.device("cuda")
    make = joined(monkeypatch, 3, alone=True, device=there)[1]
    monkeypatch.setattr(DeviceClock, "of", lambda _: DeviceClock())
    monkeypatch.setattr(torch, "zeros", noted)
    world = make(1)
    world.tensor_group((0, 1))
    world.barrier()
    assert made == [there] * 5, "two sums, a message to each, the sum of a tensor group, a barrier"


def test_sums_of_all_ranks_and_messages_of_rings_are_on_groups_of_their_own(world: ProcessGroups, nccl: Nccl) -> None:
    """On one communicator a sum that a rank has enqueued would wait for its messages, and they for the sum of a peer."""
    nccl.sums.clear()
    world.barrier()
    world.scalars([1.0])
    world.transfer([(2, torch.ones(1))], [])
    ((message,),) = nccl.sent
    assert message[3] is nccl.group.WORLD and nccl.sums == [nccl.sums[0]] * 2 and nccl.group.WORLD not in nccl.sums
    assert nccl.sums[0].ranks == (0, 1, 2)


def test_an_exchange_is_under_way_when_it_returns(world: ProcessGroups) -> None:
    world.all_to_all(torch.zeros(3), torch.zeros(3), [1, 1, 1], [1, 1, 1], 0).wait()


def test_what_ranks_say_of_a_step_arrives_with_every_digit(world: ProcessGroups) -> None:
    assert world.scalars([0.1, 1e300]) == [[0.1, 1e300]] * 3


def test_rows_and_columns_of_many_ranks_are_made_by_their_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every rank would have to make all of them."""
    nccl, make = joined(monkeypatch, 100, alone=True)
    world = make(42)
    assert nccl.local == list(world.hops)
    assert [group.ranks for group in nccl.local] == [tuple(range(40, 50)), tuple(range(2, 100, 10))]


def test_each_group_is_used_once_before_the_first_step(world: ProcessGroups, nccl: Nccl) -> None:
    assert [group.number for group in nccl.sums] == [0, 1]
    group = world.tensor_group((1, 2))
    assert group and nccl.sums[2:] == [group.group]


def test_a_tensor_group_is_made_once_by_its_members_alone_and_a_rank_alone_has_none(
    world: ProcessGroups, nccl: Nccl
) -> None:
    assert world.tensor_group((1,)) is None and len(nccl.patience) == 2
    group, other = world.tensor_group((0, 1)), world.tensor_group((1, 2))
    assert group is world.tensor_group((0, 1)) and group is not other
    assert group and (group.index, group.degree, group.group.ranks) == (1, 2, (0, 1))  # type: ignore[attr-defined]
    assert other and (other.index, other.degree) == (0, 2)
    assert nccl.local == [group.group, other.group] and group.clock is world.clock


def test_a_tensor_group_adds_up_and_finds_the_largest_and_both_are_waits(world: ProcessGroups, nccl: Nccl) -> None:
    group = world.tensor_group((0, 1))
    assert group
    nccl.sums.clear(), nccl.operations.clear(), world.clock.waits.clear()
    group.sum(torch.zeros(2))
    assert len(world.clock.waits) == 1
    group.maximum(torch.zeros(2))
    assert (nccl.operations, nccl.sums) == (["sum", "maximum"], [group.group] * 2) and len(world.clock.waits) == 2


def test_a_ring_sends_and_receives_by_place_in_one_batch_without_empty_messages(
    world: ProcessGroups, nccl: Nccl
) -> None:
    a, b, nothing = torch.ones(2), torch.zeros(2), torch.zeros(0)
    ring = world.exchange((2, 1, 0))
    ring.start([(0, a), (2, nothing)], [(2, b), (0, nothing)])
    (batch,) = nccl.sent
    assert [(verb, rank) for verb, rank, _, _ in batch] == [("isend", 2), ("irecv", 0)]
    assert batch[0][2] is a and batch[1][2] is b


def test_a_batch_without_a_message_is_not_sent(world: ProcessGroups, nccl: Nccl) -> None:
    """torch refuses an empty batch."""
    assert world.transfer([(0, torch.zeros(0))], []) == [] and nccl.sent == []
    transfer = world.exchange((0, 1, 2)).start([], [(0, torch.zeros(0))])
    transfer.arrived()
    transfer.wait()
    assert (transfer.receives, world.clock.waits) == (0, world.clock.waits[:1])


class Works:
    """Transfers under way that note which of them were waited for."""

    def __init__(self, world: ProcessGroups, works: int, receives: int) -> None:
        self.waited: list[int] = []
        made: list[Any] = [SimpleNamespace(wait=lambda n=n: self.waited.append(n)) for n in range(works)]
        self.transfer = RingTransfer(world, made, receives, ())


@pytest.mark.parametrize(
    ("works", "receives", "first"),
    [(3, 1, [2]), (3, 2, [2, 1]), (2, 0, []), (1, 1, [0]), (1, 2, [0])],
    ids=["gloo", "two messages", "only sends", "one receive", "a batch of NCCL"],
)
def test_what_arrives_is_waited_for_before_what_is_sent_and_each_only_once(
    world: ProcessGroups, works: int, receives: int, first: list[int]
) -> None:
    """gloo would wait for another message."""
    one = Works(world, works, receives)
    for _ in range(2):
        one.transfer.arrived()
        assert one.waited == first
    for _ in range(2):
        one.transfer.wait()
        assert one.waited == list(reversed(range(works)))
    assert len(world.clock.waits) == (2 + bool(receives))


def test_a_ring_counts_the_messages_that_arrive_and_keeps_what_it_sends(world: ProcessGroups) -> None:
    sent = torch.ones(2)
    transfer = world.exchange((0, 1, 2)).start([(2, sent)], [(0, torch.zeros(2)), (2, torch.zeros(0))])
    assert transfer.receives == 1 and transfer.sent[0][1] is sent


def test_a_rank_that_is_aborted_passes_no_barrier_and_takes_nothing_that_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = joined(monkeypatch, 3, alone=True)[1]
    aborter = WorldAborter(dict)
    world = make(1, is_aborted=aborter.is_aborted)
    world.barrier()
    aborter.abort_world()
    for use in (world.barrier, Works(world, 1, 1).transfer.arrived, Works(world, 0, 0).transfer.wait):
        with pytest.raises(RuntimeError, match="the world was aborted"):
            use()


def test_a_barrier_is_a_wait(world: ProcessGroups) -> None:
    world.clock.waits.clear()
    world.barrier()
    assert len(world.clock.waits) == 1


@pytest.mark.parametrize("error", [ValueError("shapes"), KeyboardInterrupt()])
def test_an_error_cuts_collectives_short_and_does_not_excuse_its_worker(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    aborter = WorldAborter(dict)
    with aborter.aborting_at_errors():
        pass
    assert not aborter.is_aborted()
    with pytest.raises(type(error)), aborter.aborting_at_errors():
        raise error
    assert aborter.is_aborted() and not aborter.is_over()
    aborter.abort_world()
    assert aborter.is_over()
    aborter.begin()
    assert not aborter.is_aborted() and not aborter.is_over()


@pytest.mark.parametrize(("cuda", "joined_one", "aborts"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_communicators_are_aborted_where_there_are_some_of_a_device(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, joined_one: bool, aborts: int
) -> None:
    called: list[bool] = []
    aborter = WorldAborter(dict)

    def abort() -> None:
        called.append(aborter.is_aborted())

    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: joined_one)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", abort)
    aborter.abort_world()
    assert called == [True] * aborts, "a kernel that ends by the abort is garbage at once"


@pytest.mark.parametrize(("joined_one", "calls"), [(True, ["destroy"]), (False, ["join 1", "destroy"])])
def test_a_worker_destroys_a_world_also_where_it_has_joined_none(
    monkeypatch: pytest.MonkeyPatch, joined_one: bool, calls: list[str]
) -> None:
    """Only that lets torch begin to count groups at 0, as in peers that are new."""
    called: list[str] = []
    dist = SimpleNamespace(
        is_initialized=lambda: joined_one,
        init_process_group=lambda _, store, rank, world_size: called.append(f"join {world_size}"),
        destroy_process_group=lambda: called.append("destroy"),
    )
    monkeypatch.setattr(process_groups, "dist", dist)
    leave_world()
    assert called == calls
