"""From a plan to one replica's arrays, whatever the slicing."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.digests import add, delivered
from coxswain.errors import Refused
from coxswain.index import BlockEntry
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.planlog import LoaderShare
from coxswain.wire import Evaluation, StepPlan
from coxswain_data.assembly import Need, arrays, needs
from coxswain_data.block_map import BlockMap, Owners
from coxswain_data.builder import Part, columns_by_replica
from coxswain_link.step_buffer import NO_LABEL, Columns, StepArrays

ALL, FIRST, MIDDLE, LAST = (Columns(*c) for c in ((True, True), (True, False), (False, False), (False, True)))

# Three whole samples, and two pieces of a fourth.
SEQUENCES = (
    Sequence("a", 0, 0, 0, 5, 5), Sequence("b", 0, 9, 0, 1, 1), Sequence("a", 0, 2, 0, 9, 20), Sequence("a", 0, 2, 9, 20, 20),
    Sequence("b", 1, 3, 0, 40, 40),
)  # fmt: skip


def ids(sequence: Sequence) -> np.ndarray:
    """Token ids of a whole sample, all different."""
    return np.arange(sequence.length, dtype=np.int32) + 1000 * sequence.index + (500 if sequence.source == "b" else 0)


def plan(*tasks: Task) -> StepPlan:
    labels = sum(s.labels for s in SEQUENCES)
    return StepPlan(2, 7, SEQUENCES, tasks, (), labels, "", 0.0, 1.0)


def built(plan: StepPlan, replica: int, columns: Columns = ALL) -> StepArrays:
    mine = needs(plan, {replica: columns})
    return arrays(plan, mine, [fetched(need) for need in mine], columns)


def fetched(need: Need) -> np.ndarray:
    """What a loader answers; nothing for a need without a request."""
    if need.request is None:
        return np.empty(0, np.int32)
    whole, wanted = ids(need.request.sequence)[need.request.sequence.start :], need.request
    tokens = whole[wanted.start : wanted.stop]
    assert len(tokens) == wanted.stop - wanted.start > 0  # none beyond its sample
    return tokens


def random_plan(seed: int, replicas: int) -> StepPlan:
    """Each sequence cut at random places, each slice on any replica: legal for the data plane."""
    rng = random.Random(seed)
    tasks = []
    for position, sequence in enumerate(SEQUENCES):
        cuts = sorted({0, sequence.tokens, *(rng.randint(0, sequence.tokens) for _ in range(rng.randint(0, 4)))})
        parts = [Slice(rng.randrange(replicas), position, a, b) for a, b in itertools.pairwise(cuts)]
        tasks.append(Task(position, "ring", tuple({p.replica for p in parts}), tuple(parts)))
    return plan(*tasks)


def whole(replica: int = 0) -> StepPlan:
    return plan(Task(0, "pack", (replica,), tuple(Slice(replica, i, 0, s.tokens) for i, s in enumerate(SEQUENCES))))


def test_a_whole_sequence_has_its_next_tokens_as_labels_and_none_at_its_end():
    got = built(whole(), 0)
    assert got.tokens[:5].tolist() == [0, 1, 2, 3, 4]
    assert got.labels[:5].tolist() == [1, 2, 3, 4, NO_LABEL]
    assert got.positions[:5].tolist() == [0, 1, 2, 3, 4]


def test_a_piece_of_a_split_sample_has_the_next_token_as_its_last_label():
    got = built(whole(), 0)
    piece = next(s for s in got.slices if s.sequence == 2)
    assert got.labels[piece.offset + 8] == ids(SEQUENCES[2])[9]
    assert got.positions[piece.offset : piece.offset + 9].tolist() == list(range(9))


def test_valid_labels_are_as_many_as_the_plan_says():
    got = built(whole(), 0)
    assert (got.labels != NO_LABEL).sum() == whole().labels


@pytest.mark.parametrize("seed", range(20))
def test_any_slicing_gives_the_same_tokens_labels_and_delivered_digest(seed):
    reference, replicas = built(whole(), 0), 1 + seed % 4
    parts = [built(random_plan(seed, replicas), r) for r in range(replicas)]
    assert digest_of(parts) == digest_of([reference])
    assert triples(parts) == triples([reference])
    assert sum(len(p.tokens) for p in parts) == len(reference.tokens)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("columns", [FIRST, MIDDLE, LAST])
def test_a_trainer_with_one_stage_of_a_replica_gets_its_columns_as_if_it_had_all(seed, columns):
    plan = random_plan(seed, 2)
    whole, part = built(plan, 0), built(plan, 0, columns)
    assert part.slices == whole.slices
    assert np.array_equal(part.positions, whole.positions)
    assert part.tokens.tolist() == (whole.tokens.tolist() if columns.tokens else [])
    assert part.labels.tolist() == (whole.labels.tolist() if columns.labels else [])


def test_a_trainer_fetches_only_what_its_stages_need():
    def requests(columns: Columns) -> list[tuple[int, int] | None]:
        return [n.request and (n.request.start, n.request.stop) for n in needs(whole(), {0: columns})]

    assert requests(ALL) == [(0, 5), (0, 1), (0, 10), (0, 11), (0, 40)]
    assert requests(FIRST) == [(0, 5), (0, 1), (0, 9), (0, 11), (0, 40)]
    assert requests(MIDDLE) == [None] * 5
    assert requests(LAST) == [(1, 5), None, (1, 10), (1, 11), (1, 40)]  # the second sample has one token, so no label


def test_a_trainer_fetches_a_replicas_tokens_once_for_all_its_stages():
    parts = [Part(1, FIRST), Part(1, MIDDLE), Part(0, LAST), Part(1, LAST), Part(2, MIDDLE)]
    assert columns_by_replica(parts) == {0: LAST, 1: ALL, 2: MIDDLE}


def test_slices_come_in_task_order_whatever_the_order_of_the_plan():
    first, second = Task(1, "pack", (0,), (Slice(0, 0, 0, 5),)), Task(0, "pack", (0,), (Slice(0, 1, 0, 1),))
    got = built(plan(first, second), 0)
    assert [(s.task, s.offset) for s in got.slices] == [(0, 0), (1, 1)]


def test_a_replicas_arrays_hold_its_part_of_the_evaluation_behind_those_of_the_step():
    held_out, first = Sequence("a", -1, 7, 0, 6, 9), len(SEQUENCES)
    task = Task(1, "ring", (0, 1), (Slice(0, first, 0, 2), Slice(1, first, 2, 4), Slice(0, first, 4, 6)))
    got = built(replace(whole(), evaluation=Evaluation((held_out,), (task,), (), held_out.labels, first)), 0)
    step = built(whole(), 0)
    tokens = len(step.tokens)
    assert got.tokens[:tokens].tolist() == step.tokens.tolist()
    assert [tuple(s)[:4] for s in got.slices[-2:]] == [(1, first, 0, 2), (1, first, 4, 6)]
    assert got.tokens[tokens:].tolist() == [ids(held_out)[i] for i in (0, 1, 4, 5)]
    assert got.labels[tokens:].tolist() == [ids(held_out)[i] for i in (1, 2, 5, 6)]


def test_a_replica_without_a_task_gets_nothing():
    assert len(built(whole(replica=1), 0).tokens) == 0


def triples(parts: list[StepArrays]) -> set[tuple[int, int, int, int]]:
    return {
        (s.sequence, int(p.positions[i]), int(p.tokens[i]), int(p.labels[i]))
        for p in parts for s in p.slices for i in range(s.offset, s.offset + s.stop - s.start)
    }  # fmt: skip


def digest_of(parts: list[StepArrays]) -> int:
    total = 0
    for p in parts:
        for s in p.slices:
            at = slice(s.offset, s.offset + s.stop - s.start)
            total = add(total, delivered(s.sequence, p.positions[at], p.tokens[at]))
    return total


def block(samples: int) -> BlockEntry:
    return BlockEntry("a", 0, 0, 1, 1, "", samples=samples)


def test_an_index_counts_through_the_blocks_of_a_source_and_skips_empty_ones():
    block_map = BlockMap([block(2), block(0), block(3)])
    assert [block_map.locate(i) for i in range(5)] == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(("blocks", "index"), [([2, 3, 1], -1), ([2, 3, 1], 6), ([], 0)])
def test_a_sample_beyond_the_index_is_refused(blocks, index):
    with pytest.raises(Refused, match=f"has {sum(blocks)} samples"):
        BlockMap([block(samples) for samples in blocks]).locate(index)


def test_blocks_belong_to_loaders_in_turn():
    owners = Owners((
        LoaderShare("loader-0", "a", 0, 2),
        LoaderShare("loader-1", "a", 1, 2),
        LoaderShare("loader-1", "b", 0, 1),
    ))  # fmt: skip
    assert [owners.of("a", i) for i in range(3)] == ["loader-0", "loader-1", "loader-0"]
    assert owners.of("b", 7) == "loader-1"
    with pytest.raises(Refused, match="block 0 of source 'c'"):
        owners.of("c", 0)
