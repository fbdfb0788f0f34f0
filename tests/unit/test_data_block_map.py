"""A constructor fetches a source's list of blocks once, not again in each world."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.config import MixConfig
from coxswain.errors import Refused, Retryable
from coxswain.wire import SourceBlocks
from coxswain_coordinator.index.merge import Index, SourceIndex
from coxswain_coordinator.index.progress import IndexProgress
from coxswain_data.block_map import BlockMap, BlockMaps
from tests.unit.coordinator_fakes import BLOCKS, block_of

CODE, WEB = (tuple(block_of(source, b) for b in range(BLOCKS)) for source in ("code", "web"))


class Coordinator:
    """Answers from a real index of two sources, a few blocks a message; counts the blocks that it sends."""

    def __init__(self, *blocks: Any) -> None:
        self.progress, self.sent = IndexProgress(MixConfig(name="m", seed=1, sources=())), 0
        self.has(*blocks)

    def has(self, *blocks: Any) -> None:
        self.progress.index = Index((SourceIndex("code", tuple(blocks)), SourceIndex("web", WEB)), 257)

    def get(self, _: str, __: type, *, source: str, wait: float, **query: Any) -> SourceBlocks | None:
        found = self.progress.blocks(source, query.get("from", 0), query.get("known", ""), most=4)
        self.sent += len(found.blocks) if found else 0
        return found


def test_the_next_world_gets_the_blocks_of_the_one_before_without_fetching_them():
    coordinator: Any = Coordinator(*CODE)
    maps = BlockMaps(coordinator)
    first, other = maps.get("code", 0), maps.get("web", 0)
    assert (first.blocks, other.blocks, coordinator.sent) == (CODE, WEB, 2 * BLOCKS)
    assert maps.get("code", 0) is first and maps.get("web", 0) is other
    assert coordinator.sent == 2 * BLOCKS


def test_every_sample_is_in_the_block_that_counts_it_also_behind_blocks_without_any():
    counts = (2, 0, 3, 0, 0, 1)
    blocks = BlockMap([replace(CODE[0], ordinal=n, samples=count) for n, count in enumerate(counts)])
    places = [(block, n) for block, count in enumerate(counts) for n in range(count)]
    assert [blocks.locate(index) for index in range(blocks.samples)] == places
    with pytest.raises(Refused):
        blocks.locate(len(places))


@pytest.mark.parametrize("index", [-1, -BLOCKS, 10**9])
def test_a_sample_that_the_index_does_not_have_is_refused(index: int):
    with pytest.raises(Refused, match=f"sample {index} is not in the index") as caught:
        BlockMap(CODE).locate(index)
    assert caught.value.reason == "PlanBroken"


def test_a_source_that_has_changed_is_fetched_again():
    coordinator: Any = Coordinator(*CODE)
    maps = BlockMaps(coordinator)
    maps.get("code", 0)
    changed = (*CODE[:-1], replace(CODE[-1], key="other"))
    coordinator.has(*changed)
    assert maps.get("code", 0).blocks == changed


class Changing(Coordinator):
    """Has other blocks after the first message."""

    def __init__(self, *later: Any) -> None:
        super().__init__(*CODE)
        self._later = later

    def get(self, *names: Any, **query: Any) -> SourceBlocks | None:
        found = super().get(*names, **query)
        self.has(*self._later)
        return found


LATER = {"other": [replace(b, key="other") for b in CODE], "fewer": CODE[:3], "more": (*CODE, *WEB)}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_blocks_of_two_indexes_are_never_taken_for_one_and_those_of_the_later_come_at_the_next_try(later):
    maps = BlockMaps(Changing(*later))  # type: ignore[arg-type]
    with pytest.raises(Retryable, match="index of source 'code' is another one since"):
        maps.get("code", 0)
    assert maps.get("code", 0).blocks == list(later)


def test_a_coordinator_that_sends_nothing_of_what_it_counts_is_not_asked_without_end():
    coordinator: Any = Coordinator(*CODE)
    coordinator.get = lambda _, __, **query: SourceBlocks("code", CODE[:1] if query["from"] == 0 else (), 2, "one")
    with pytest.raises(Retryable, match="is another one"):
        BlockMaps(coordinator).get("code", 0)


def test_a_coordinator_without_an_index_is_asked_again_although_the_blocks_are_known():
    coordinator: Any = Coordinator(*CODE)
    maps = BlockMaps(coordinator)
    maps.get("code", 0)
    coordinator.progress.index = None
    with pytest.raises(Retryable, match="does not have the whole index"):
        maps.get("code", 0)
