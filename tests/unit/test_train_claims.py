"""What ranks claim to hold before a change of layout, and which claims and contents drop the change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain.layout import Device, uniform_layout
from coxswain.live import Holder, LiveSource
from coxswain_train.live.claims import Claim, Content, NotHeld, check_claims, check_contents, check_moved
from coxswain_train.live.state import Cut
from tests.unit.living_samples import MOST, STATS, pending, state_of

GENERATION, STEP = 4, 8


LAYOUT = uniform_layout([Device(t, 0) for t in range(3)], layers=1)


OWNERS = tuple(Holder(rank, rank) for rank in range(3))


SOURCE = LiveSource(GENERATION, LAYOUT, STEP, OWNERS)


DONE = Claim(GENERATION, -1, STEP, -1, agreed=STEP - 1, norm=2.5, loss_sum=7.0)


BEHIND = replace(DONE, step=STEP - 1, reduced=1.0, agreed=-1, norm=0.0, loss_sum=0.0)


def claims_of(*claims: Claim) -> list[Claim]:
    return [replace(claim, rank=rank) if claim.rank == -1 else claim for rank, claim in enumerate(claims)]


@pytest.mark.parametrize(
    ("cut", "weights", "claim"),
    [
        (None, True, Claim()),
        (Cut(4, 1, 8, state_of()), False, Claim(4, 1, 8)),
        (Cut(4, 1, 8, state_of(), ward=0), True, Claim(4, 1, 8, 0, weights=1)),
        (Cut(4, 1, 8, state_of(), agreed=STATS), False, Claim(4, 1, 8, agreed=7, norm=2.5, loss_sum=7.0)),
        (Cut(4, 1, 8, state_of(), pending=pending(8), agreed=STATS), False, Claim(4, 1, 8, reduced=1)),
        (
            Cut(4, 1, 8, state_of(), pending=pending(8, STATS)), False,
            Claim(4, 1, 8, reduced=1, agreed=8, norm=2.5, loss_sum=7.0),
        ),
    ],
    ids=["nothing", "own", "copy", "updated", "reduced", "agreed"],
)  # fmt: skip
def test_a_rank_claims_what_its_cut_has_and_the_last_step_that_it_knows_agreed(
    cut: Cut | None, weights: bool, claim: Claim
) -> None:
    found = Claim.of(cut, weights)
    assert found == claim and Claim(*found.row()) == found


def test_ranks_that_have_the_step_have_nothing_to_finish() -> None:
    assert check_claims(SOURCE, claims_of(DONE, DONE, DONE)) is None


@pytest.mark.parametrize(
    "knows", [DONE, replace(BEHIND, agreed=STEP - 1, norm=2.5, loss_sum=7.0)], ids=["updated", "agreed"]
)
def test_ranks_behind_finish_the_step_with_what_another_knows_of_it(knows: Claim) -> None:
    assert check_claims(SOURCE, claims_of(BEHIND, knows, BEHIND)) == STATS


@pytest.mark.parametrize(
    "other",
    [
        BEHIND,
        replace(DONE, agreed=STEP - 2),
        replace(DONE, agreed=STEP),
        replace(BEHIND, generation=GENERATION - 1, agreed=STEP - 1, norm=2.5, rank=0),
    ],
    ids=["unknown", "of the step before", "of the step after", "of another generation"],
)
def test_a_step_whose_statistics_no_rank_knows_is_not_finished(other: Claim) -> None:
    holders = (Holder(0, 0), Holder(1, 1), Holder(2, 2))[: 3 if other.generation == GENERATION else 2]
    source = replace_source(holders=(*holders, *((Holder(2, 1, copy=True),) if len(holders) < 3 else ())))
    claims = claims_of(BEHIND, replace(BEHIND, ward=2), other)
    with pytest.raises(Retryable, match=r"are to finish step 7; its statistics are known as \[\], which must be one"):
        check_claims(source, claims)


def replace_source(**changes: Any) -> LiveSource:
    return LiveSource(**{"generation": GENERATION, "layout": LAYOUT, "step": STEP, "holders": OWNERS} | changes)


@pytest.mark.parametrize("differs", [{"norm": 2.0}, {"loss_sum": 6.0}])
def test_a_step_of_which_ranks_know_different_statistics_is_not_finished(differs: dict[str, float]) -> None:
    with pytest.raises(Retryable, match=r"^ranks \[0\] are to finish step 7; its statistics are known as"):
        check_claims(SOURCE, claims_of(BEHIND, DONE, replace(DONE, **differs)))


@pytest.mark.parametrize(
    ("claim", "has"),
    [
        (replace(DONE, step=STEP - 1), "it has step 7"),  # not reduced
        (replace(BEHIND, step=STEP - 2), "it has step 6"),
        (replace(BEHIND, step=STEP + 1), "it has step 9"),
        (replace(DONE, generation=3.0), "it holds rank 2 of generation 3"),
        (replace(DONE, rank=1.0), "it holds rank 1 of generation 4"),
        (replace(DONE, rank=1.0, ward=2.0), "it holds rank 1 of generation 4"),  # a copy is not the shard
    ],
)
def test_a_rank_that_does_not_hold_what_the_source_says_is_named(claim: Claim, has: str) -> None:
    with pytest.raises(NotHeld, match=rf"^rank 2 is to hold the shard of rank 2 of generation 4.*, {has}$"):
        check_claims(SOURCE, claims_of(DONE, DONE, claim))


def test_a_copy_must_be_of_the_ward_that_the_source_names() -> None:
    source = replace_source(holders=(*OWNERS[:2], Holder(2, 0, copy=True)))
    assert check_claims(source, claims_of(replace(DONE, ward=2), DONE)) is None
    with pytest.raises(Retryable, match=r"^rank 0 is to hold the copy of rank 2 of generation 4, it holds rank 0"):
        check_claims(source, claims_of(replace(DONE, ward=1), DONE))


def contents_of(*shards: tuple[int, int]) -> list[Content]:
    return [Content(5, own, copy) for own, copy in shards]


def test_the_content_of_the_whole_state_counts_every_shard_once_however_many_hold_it() -> None:
    holders = (Holder(0, 0), Holder(1, 0, copy=True), Holder(1, 1), Holder(2, 1, copy=True), Holder(2, 2))
    contents = contents_of((10, 20), (20, MOST), (MOST, 0))
    assert check_contents(replace_source(holders=holders), contents) == 10 + 20 + MOST - (MOST + 1)
    differs = [*contents[:2], replace(contents[2], own=3)]
    with pytest.raises(Retryable, match="ranks 1 and 2 hold different contents of the shard of rank 2"):
        check_contents(replace_source(holders=holders), differs)


@pytest.mark.parametrize("moves", [4, 6])
def test_ranks_that_made_another_transfer_list_are_named(moves: int) -> None:
    contents = contents_of((1, 0), (2, 0), (3, 0))
    with pytest.raises(Retryable, match=r"^ranks \[1\] made another transfer list than rank 0$"):
        check_contents(SOURCE, [contents[0], replace(contents[1], moves=moves), contents[2]])


@pytest.mark.parametrize(
    ("contents", "copies", "says"),
    [
        ([(1, 2), (2, 1)], True, ""),
        ([(1, 0), (2, 0)], False, ""),
        ([(MOST, 5), (4, MOST - 1)], True, ""),
        ([(1, 0), (2, 0)], True, "the new copies have content 0000000000000000, the old ones 0000000000000003"),
        ([(1, 2), (1, 1)], True, "the new shards have content 0000000000000002, the old ones 0000000000000003"),
    ],
)
def test_a_change_counts_only_if_shards_and_copies_are_what_the_old_state_was(
    contents: list[tuple[int, int]], copies: bool, says: str
) -> None:
    if not says:
        check_moved(3, contents_of(*contents), copies)
        return
    with pytest.raises(Retryable, match=f"^{says}: the change is dropped$"):
        check_moved(3, contents_of(*contents), copies)


def test_a_change_does_not_count_where_messages_did_not_match_whatever_arrived() -> None:
    whole_ = contents_of((1, 0), (2, 0))
    with pytest.raises(Retryable, match=r"^ranks \[1\] received messages that do not match their manifests"):
        check_moved(3, [whole_[0], replace(whole_[1], fault=1)], False)
