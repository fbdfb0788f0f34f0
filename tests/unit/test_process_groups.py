"""The communicators of a world, on a `torch.distributed` that behaves as NCCL does where gloo does not. Ranks are threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from coxswain_train.parallel.process_groups import ProcessGroups
from tests.unit.nccl_double import joined


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (3, 1), (64, 1), (100, 2)])
def test_a_rank_has_sent_each_peer_of_a_later_exchange_something_before_its_world_begins(
    monkeypatch: pytest.MonkeyPatch, ranks: int, groups: int
) -> None:
    nccl, join = joined(monkeypatch, ranks, alone=True)
    world = join(ranks - 1)
    first, nccl.exchanges = nccl.exchanges, []
    for hop in range(groups):
        world.all_to_all(torch.zeros(0), torch.zeros(0), [], [], hop)
    assert [group for group, _, _ in first] == [group for group, _, _ in nccl.exchanges]
    assert all(min(sizes) > 0 and len(sizes) == group.size() for group, *both in first for sizes in both)
    assert {group.size() for group, _, _ in first} == ({10} if ranks == 100 else {ranks})


def test_a_bucket_that_leaves_within_a_backward_waits_for_no_peer_that_waits_for_the_rest_of_this_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0's last backward is that of a ring. Rank 1 has its part of the ring enqueued, and its host waits for the device."""
    nccl, join = joined(monkeypatch, 2, alone=False)

    def hop(world: ProcessGroups) -> None:
        peer = 1 - world.rank
        world.transfer([(peer, torch.ones(1))], [(peer, torch.zeros(1))])

    def bucket(world: ProcessGroups) -> None:
        world.all_to_all(torch.zeros(2), torch.zeros(2), [1, 1], [1, 1], 0)

    def run(rank: int) -> None:
        world = join(rank)
        for each in ([hop, bucket, hop], [hop, hop, lambda _: nccl.synchronize(), bucket])[rank]:
            each(world)
        nccl.batches.leave()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [None, None]


def test_an_aborted_rank_sends_nothing_to_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would send is made of what the abort has cut short, and peers that are not aborted yet would agree on it."""
    aborted: list[bool] = []
    nccl, join = joined(monkeypatch, 2, alone=True)
    world = join(0, is_aborted=lambda: bool(aborted))
    assert world.scalars([3.0]) == [[3.0], [3.0]]
    aborted.append(True)
    nccl.sums.clear()
    with pytest.raises(RuntimeError, match="the world was aborted"):
        world.scalars([3.0])
    assert nccl.sums == []


def test_a_vote_that_an_abort_has_cut_short_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gather ends as if it were done: ranks would agree on whatever was in its buffer."""
    aborted: list[bool] = []
    nccl, join = joined(monkeypatch, 2, alone=True)
    world = join(0, is_aborted=lambda: bool(aborted))
    monkeypatch.setattr(nccl, "all_gather_into_tensor", lambda *_, **__: aborted.append(True))
    with pytest.raises(RuntimeError, match="the world was aborted"):
        world.scalars([3.0])
    assert aborted == [True]
