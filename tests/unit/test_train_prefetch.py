"""A rank's data of a step is fetched one step ahead: it is the plan's, and an early request loses nothing."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from coxswain import digests
from coxswain.errors import Refused, Retryable, Stale
from coxswain.layout import Device, Seat
from coxswain.membership.values import Sequence
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from coxswain.wire import Evaluation, StepPlan
from coxswain_link.step_buffer import NO_LABEL, Buffer, Columns, StepSlice, pack
from coxswain_train.worker.prefetch import BatchPrefetcher
from tests.step_samples import LENGTH, arrays, plan
from tests.unit.test_data_handover import served

VOCABULARY = 32
Provide = Callable[[int, float], Buffer | None]


def buffer(step: int) -> Buffer:
    return pack(arrays(step, token=step))


class Constructor:
    """Hands over what `provide` returns; keeps which steps were requested, and whether the request would wait."""

    def __init__(self) -> None:
        self.provide: Provide = lambda step, wait: buffer(step)
        self.asked: list[tuple[int, bool]] = []  # step, whether it would have waited

    def __call__(self, generation: int, step: int, rank: int, wait: float) -> Buffer | None:
        self.asked.append((step, wait > 0))
        return self.provide(step, wait)


@pytest.fixture
def constructor() -> Constructor:
    return Constructor()


@pytest.fixture
def receiver(constructor: Constructor) -> Iterator[BatchPrefetcher]:
    with served(constructor) as connect:
        found = BatchPrefetcher(connect("t"), Seat(0, Device(0, 0), 0, 0, 0), VOCABULARY, torch.device("cpu"))
        yield found
        found.close()


def test_a_step_that_was_fetched_ahead_is_taken_without_another_request(
    receiver: BatchPrefetcher, constructor: Constructor
) -> None:
    receiver.begin(plan(4))
    received = receiver.take(plan(4))
    assert received.work.step == 4 and received.work.batch.tokens.tolist() == [4] * LENGTH
    assert received.work.valid == LENGTH - 1 and received.delivered
    assert constructor.asked == [(4, False)]


def test_a_rank_gets_its_own_part_of_a_plan_whose_number_is_the_end_of_its_digest(receiver: BatchPrefetcher) -> None:
    alone = plan(4, digest=2**48 + 0xF5)
    other = Task(1, "pack", (1,), (Slice(1, 0, 0, 1),))
    lists = (*alone.operations, StageOperations(1, 0, (Operation("F", 1),)), StageOperations(0, 1, ()))
    work = receiver.take(replace(alone, tasks=(*alone.tasks, other), operations=lists)).work
    assert (work.step, work.labels, work.valid, work.plan) == (4, LENGTH - 1, LENGTH - 1, 0xF5)
    assert (list(work.parts), work.operations) == ([0], list(alone.operations[0].operations))
    assert work.batch.labels.tolist() == [4] * (LENGTH - 1) + [NO_LABEL]
    assert work.batch.positions.tolist() == list(range(LENGTH))


def test_a_step_is_the_same_whether_or_not_it_was_fetched_ahead(receiver: BatchPrefetcher) -> None:
    receiver.begin(plan(4))
    ahead, late = receiver.take(plan(4)), receiver.take(plan(4))
    assert ahead.delivered == late.delivered
    assert torch.equal(ahead.work.batch.labels, late.work.batch.labels)


def with_evaluation(step: int) -> StepPlan:
    """A held-out sequence behind the step, on this rank, and one on another."""
    tasks = (Task(1, "pack", (0,), (Slice(0, 1, 0, 5),)), Task(2, "pack", (1,), (Slice(1, 2, 0, 3),)))
    operations = (StageOperations(0, 0, (Operation("F", 1),)), StageOperations(1, 0, (Operation("F", 2),)))
    sequences = (Sequence("code", -1, 8, 0, 5, 5), Sequence("code", -1, 9, 0, 3, 3))
    return replace(plan(step), evaluation=Evaluation(sequences, tasks, operations, 6, len(plan(step).sequences)))


def with_held_out(step: int, tokens: int) -> Buffer:
    """The step's arrays with those of the evaluation behind them."""
    own = arrays(step, token=step)
    more = {name: np.append(getattr(own, name), long(3, tokens)) for name in ("tokens", "labels", "positions")}
    return pack(dataclasses.replace(own, slices=(*own.slices, StepSlice(1, 1, 0, tokens, LENGTH)), **more))


def test_held_out_tokens_are_in_the_batch_and_neither_trained_on_nor_delivered(
    receiver: BatchPrefetcher, constructor: Constructor
) -> None:
    alone = receiver.take(plan(4))
    constructor.provide = lambda step, wait: with_held_out(step, 5)
    found = receiver.take(with_evaluation(4))
    assert (found.delivered, found.work.valid) == (alone.delivered, alone.work.valid)
    assert (found.work.operations, found.work.evaluation) == (alone.work.operations, [Operation("F", 1)])
    assert (found.work.parts[1].start, found.work.parts[1].stop) == (LENGTH, LENGTH + 5)
    assert found.work.batch.tokens.tolist() == [4] * LENGTH + [3] * 5
    assert alone.work.evaluation is None


def test_an_evaluation_of_other_slices_than_the_plans_is_not_computed(
    receiver: BatchPrefetcher, constructor: Constructor
) -> None:
    constructor.provide = lambda step, wait: with_held_out(step, 4)
    with pytest.raises(Retryable, match="handed over slices"):
        receiver.take(with_evaluation(4))


def long(value: int, tokens: int = LENGTH) -> NDArray[np.int32]:
    return np.full(tokens, value, np.int32)


TOO_LONG = dict.fromkeys(("tokens", "labels", "positions"), long(1, LENGTH + 1))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            {"slices": (StepSlice(0, 0, 4, 16, 0),)},
            Retryable,
            r"step 4: the constructor handed over slices \[\(0, 0, 4, 16\)",
        ),
        (
            {"slices": tuple(StepSlice(0, 0, i, i + 2, i) for i in range(0, 12, 2))},
            Retryable,
            r"over slices \[(\([0-9, ]+\), ){3}\(0, 0, 6, 8\)\]\.\.\., the plan has \[\(0, 0, 0, 12\)\]",
        ),
        (TOO_LONG, Retryable, r"handed over \[13, 13, 13\] tokens, labels and positions, the plan has \[12, 12, 12\]"),
        ({"tokens": long(VOCABULARY)}, Refused, "step 4: token id 32, model.vocabulary is 32"),
        ({"labels": long(VOCABULARY)}, Refused, "step 4: token id 32, model.vocabulary is 32"),
    ],
)
def test_arrays_that_are_not_the_plans_or_hold_an_unknown_token_are_not_trained_on(
    receiver: BatchPrefetcher, constructor: Constructor, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    constructor.provide = lambda step, wait: pack(dataclasses.replace(arrays(step), **change))
    with pytest.raises(error, match=says):
        receiver.take(plan(4))


FIRST, LAST = Columns(labels=False), Columns(tokens=False)


@pytest.mark.parametrize(
    ("tensor", "columns", "counts"), [(0, FIRST, True), (1, FIRST, False), (0, LAST, False), (0, Columns(), True)]
)
def test_a_rank_gets_the_columns_of_its_stage_and_one_rank_a_replica_counts_the_tokens(
    constructor: Constructor, tensor: int, columns: Columns, counts: bool
) -> None:
    constructor.provide = lambda step, wait: pack(arrays(step).only(columns))
    seat = Seat(0, Device(0, 0), 0, 0 if columns.tokens else 1, tensor)
    with served(constructor) as connect:
        mine = BatchPrefetcher(connect("t"), seat, VOCABULARY, torch.device("cpu"), columns)
        lists = (StageOperations(0, seat.stage, (Operation("F", 0),)),)
        received = mine.take(replace(plan(4), operations=lists))
        mine.close()
    batch = received.work.batch
    assert [len(c) for c in (batch.tokens, batch.labels, batch.positions)] == [
        LENGTH * columns.tokens, LENGTH * columns.labels, LENGTH,
    ]  # fmt: skip
    assert (received.delivered != 0) == counts
    assert received.work.operations == [Operation("F", 0)]


@pytest.mark.parametrize(("columns", "other"), [(FIRST, LAST), (LAST, FIRST), (FIRST, Columns()), (Columns(), FIRST)])
def test_columns_of_another_stage_are_not_trained_on(
    constructor: Constructor, columns: Columns, other: Columns
) -> None:
    constructor.provide = lambda step, wait: pack(arrays(step).only(other))
    with served(constructor) as connect:
        mine = BatchPrefetcher(connect("t"), Seat(0, Device(0, 0), 0, 0, 0), VOCABULARY, torch.device("cpu"), columns)
        with pytest.raises(Retryable, match="tokens, labels and positions, the plan has"):
            mine.take(plan(4))
        mine.close()


def test_the_delivered_digest_names_each_sequence_by_its_place(
    receiver: BatchPrefetcher, constructor: Constructor
) -> None:
    alone, mine = plan(4), (StepSlice(0, 1, 0, LENGTH, 0),)
    constructor.provide = lambda step, wait: pack(dataclasses.replace(arrays(step), slices=mine))
    task = replace(alone.tasks[0], slices=(Slice(0, 1, 0, LENGTH),))
    received = receiver.take(replace(alone, sequences=alone.sequences * 2, tasks=(task,)))
    assert received.delivered == digests.delivered(1, np.arange(LENGTH), long(7))


def test_the_last_token_of_the_vocabulary_is_known(receiver: BatchPrefetcher, constructor: Constructor) -> None:
    constructor.provide = lambda step, wait: pack(arrays(step, token=VOCABULARY - 1))
    assert receiver.take(plan(4)).work.batch.tokens.max() == VOCABULARY - 1


def test_a_step_that_is_not_built_yet_blocks_only_when_it_is_due(
    receiver: BatchPrefetcher, constructor: Constructor
) -> None:
    constructor.provide = lambda step, wait: buffer(step) if wait else None
    receiver.begin(plan(4))
    assert receiver.take(plan(4)).work.step == 4
    assert constructor.asked == [(4, False), (4, True)]


def test_data_of_a_plan_that_was_replaced_is_fetched_again(receiver: BatchPrefetcher, constructor: Constructor) -> None:
    receiver.begin(plan(4, digest=1))
    assert receiver.take(plan(4, digest=2)).work.plan == 2
    assert constructor.asked == [(4, False), (4, True)]


@pytest.mark.parametrize("error", [Refused("SourceChanged", "it is another"), Stale("generation 1 is over")])
def test_a_refusal_shows_when_the_step_is_due(
    receiver: BatchPrefetcher, constructor: Constructor, error: Exception
) -> None:
    def refuse(step: int, wait: float) -> Buffer:
        raise error

    constructor.provide = refuse
    receiver.begin(plan(4))
    with pytest.raises(type(error), match=str(error)):
        receiver.take(plan(4))


def test_no_thread_outlives_the_world(receiver: BatchPrefetcher, constructor: Constructor) -> None:
    began = threading.Event()

    def slow(step: int, wait: float) -> Buffer:
        began.set()
        return buffer(step)

    constructor.provide = slow
    receiver.begin(plan(4))
    assert began.wait(10)
    receiver.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]
