"""A rank's data of a step, fetched one step ahead: what is taken is what the plan says, and nothing is lost by asking early."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from coxswain.errors import Refused, Stale
from coxswain.layout import Device, Seat
from coxswain.membership.values import Sequence
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from coxswain.wire import StepPlan
from coxswain_link.handover import Handover, HandoverServer
from coxswain_link.steparrays import NO_LABEL, Buffer, StepArrays, StepSlice, pack
from coxswain_train.receiving import Receiver

LENGTH, VOCABULARY = 6, 32
Provide = Callable[[int, float], Buffer | None]


def plan(step: int, digest: int = 1) -> StepPlan:
    task = Task(index=0, kind="pack", replicas=(0,), slices=(Slice(0, 0, 0, LENGTH),))
    return StepPlan(
        generation=1, step=step, sequences=(Sequence("code", 0, step, 0, LENGTH, LENGTH),), tasks=(task,),
        operations=(StageOperations(0, 0, (Operation("F", 0), Operation("B", 0))),), labels=LENGTH - 1,
        digest=f"sha256:{digest:064x}", makespan_seconds=1.0, makespan_over_bound=1.0,
    )  # fmt: skip


def buffer(step: int) -> Buffer:
    tokens = np.full(LENGTH, step, np.int32)
    labels = np.append(tokens[1:], NO_LABEL).astype(np.int32)
    positions = np.arange(LENGTH, dtype=np.int32)
    return pack(StepArrays(1, step, tokens, labels, positions, (StepSlice(0, 0, 0, LENGTH, 0),)))


class Constructor:
    """Hands over what `provide` says; keeps who asked for which step, and how patiently."""

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
def receiver(constructor: Constructor) -> Iterator[Receiver]:
    name = f"\0coxswain-test-{uuid.uuid4()}"
    server = HandoverServer(name, "t", constructor)
    with Handover(name, "t") as handover:
        found = Receiver(handover, Seat(0, Device(0, 0), 0, 0, 0), VOCABULARY, torch.device("cpu"))
        yield found
        found.close()
    server.close()


def test_what_was_fetched_ahead_is_taken_without_asking_again(receiver: Receiver, constructor: Constructor) -> None:
    receiver.begin(plan(4))
    received = receiver.take(plan(4))
    assert received.work.step == 4 and received.work.batch.tokens.tolist() == [4] * LENGTH
    assert received.work.valid == LENGTH - 1 and received.delivered
    assert constructor.asked == [(4, False)]


def test_what_is_fetched_ahead_and_what_is_not_are_the_same(receiver: Receiver) -> None:
    receiver.begin(plan(4))
    ahead, late = receiver.take(plan(4)), receiver.take(plan(4))
    assert ahead.delivered == late.delivered
    assert torch.equal(ahead.work.batch.labels, late.work.batch.labels)


def test_a_step_that_is_not_built_yet_is_waited_for_only_when_it_is_due(
    receiver: Receiver, constructor: Constructor
) -> None:
    constructor.provide = lambda step, wait: buffer(step) if wait else None
    receiver.begin(plan(4))
    assert receiver.take(plan(4)).work.step == 4
    assert constructor.asked == [(4, False), (4, True)]


def test_data_of_a_plan_that_was_not_kept_is_thrown_away(receiver: Receiver, constructor: Constructor) -> None:
    receiver.begin(plan(4, digest=1))
    assert receiver.take(plan(4, digest=2)).work.plan == 2
    assert constructor.asked == [(4, False), (4, True)]


@pytest.mark.parametrize("error", [Refused("SourceChanged", "it is another"), Stale("generation 1 is over")])
def test_a_refusal_shows_when_the_step_is_due(receiver: Receiver, constructor: Constructor, error: Exception) -> None:
    def refuse(step: int, wait: float) -> Buffer:
        raise error

    constructor.provide = refuse
    receiver.begin(plan(4))
    with pytest.raises(type(error), match=str(error)):
        receiver.take(plan(4))


def test_no_thread_outlives_the_world(receiver: Receiver, constructor: Constructor) -> None:
    began = threading.Event()

    def slow(step: int, wait: float) -> Buffer:
        began.set()
        return buffer(step)

    constructor.provide = slow
    receiver.begin(plan(4))
    assert began.wait(10)
    receiver.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("receiver")]
