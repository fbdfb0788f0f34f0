"""The hand-over of steps from a constructor to its workers."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coxswain.errors import Refused, Retryable, Stale
from coxswain.layout import Device, uniform_layout
from coxswain_link.handover import Handover, HandoverServer, Provide
from coxswain_link.step_buffer import NO_LABEL, Buffer, Columns, StepArrays, StepSlice, columns_of, pack, unpack


def arrays(generation: int = 1, step: int = 0, tokens: int = 4) -> StepArrays:
    ids = np.arange(tokens, dtype=np.int32)
    labels = np.append(ids[1:], NO_LABEL).astype(np.int32)[:tokens]
    slices = (StepSlice(0, 3, 0, tokens, 0),) if tokens else ()
    return StepArrays(generation, step, ids, labels, ids, slices)


@contextmanager
def served(provide: Provide, token: str = "t") -> Iterator[Callable[..., Handover]]:
    before, name = set(threading.enumerate()), f"\0coxswain-test-{uuid.uuid4()}"
    server = HandoverServer(name, token, provide)
    clients: list[Handover] = []

    def connect(sent: str = token, **limits: float) -> Handover:
        clients.append(Handover(name, sent, **limits))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.close()
        server.close()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("handover"):  # it holds a descriptor, which the next test may count
                thread.join(20)


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_step_survives_the_way_through_a_memfd():
    sent = arrays(generation=7, step=9, tokens=5)
    assert sent.labels[-1] == -100  # what cross entropy ignores
    buffer = pack(sent)
    got = unpack(buffer.fd)
    assert (got.generation, got.step, got.slices) == (7, 9, sent.slices)
    for name in ("tokens", "labels", "positions"):
        assert np.array_equal(getattr(got, name), getattr(sent, name))
        assert not getattr(got, name).flags.writeable


@pytest.mark.parametrize("columns", [Columns(t, label) for t in (True, False) for label in (True, False)])
def test_a_stage_gets_its_columns_and_the_memory_holds_no_others(columns):
    whole = arrays(tokens=500)
    buffer = pack(whole.only(columns))
    got = unpack(buffer.fd)
    assert (got.columns, got.slices) == (columns, whole.slices)
    assert got.positions.tolist() == whole.positions.tolist()
    assert got.tokens.tolist() == (whole.tokens.tolist() if columns.tokens else [])
    assert got.labels.tolist() == (whole.labels.tolist() if columns.labels else [])
    assert os.fstat(buffer.fd).st_size < 200 + 4 * 500 * (1 + columns.tokens + columns.labels)


def test_the_first_stage_needs_tokens_the_last_one_labels_and_those_between_neither():
    layout = uniform_layout([Device(0, d) for d in range(6)], layers=3, tensor=2, pipeline=3)
    found = [columns_of(layout, seat) for seat in layout.ranks()]
    assert (
        found == [Columns(labels=False)] * 2 + [Columns(tokens=False, labels=False)] * 2 + [Columns(tokens=False)] * 2
    )
    alone = uniform_layout([Device(0, 0)], layers=3)
    assert columns_of(alone, alone.ranks()[0]) == Columns()


def test_a_rank_without_tokens_gets_empty_arrays():
    buffer = pack(arrays(tokens=0))
    got = unpack(buffer.fd)
    assert len(got.tokens) == len(got.labels) == len(got.positions) == len(got.slices) == 0


def test_columns_of_another_width_are_handed_over_as_the_same_numbers():
    sent = arrays(tokens=5)
    wide = replace(sent, tokens=sent.tokens.astype(np.int64), positions=sent.positions[::-1].astype(np.int64)[::-1])
    buffer = pack(wide)
    got = unpack(buffer.fd)
    assert [list(x) for x in (got.tokens, got.labels, got.positions)] == [
        list(x) for x in (sent.tokens, sent.labels, sent.positions)
    ]


def test_a_handed_over_step_is_sealed_against_writes():
    buffer = pack(arrays())
    size = os.fstat(buffer.fd).st_size
    for change in (
        lambda: os.pwrite(buffer.fd, b"x", 0),
        lambda: os.ftruncate(buffer.fd, size - 1),
        lambda: os.ftruncate(buffer.fd, size + 1),
        lambda: fcntl.fcntl(buffer.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            change()


def test_every_rank_gets_what_was_built_for_it():
    built = {(step, rank): pack(arrays(1, step, 3 + rank)) for step in range(3) for rank in range(2)}
    with served(lambda generation, step, rank, wait: built[step, rank]) as connect:
        worker = connect("t")
        for (step, rank), _ in built.items():
            assert len(worker.receive(1, step, rank, 5.0).tokens) == 3 + rank


def test_a_buffer_dropped_during_its_hand_over_still_arrives():
    with served(lambda generation, step, rank, wait: pack(arrays(1, step))) as connect:
        got = connect("t").receive(1, 0, 0, 5.0)
        gc.collect()
        assert got.tokens.tolist() == [0, 1, 2, 3]


def test_no_descriptor_is_left_when_arrays_and_buffers_are_gone():
    with served(lambda generation, step, rank, wait: pack(arrays(1, step))) as connect:
        worker = connect("t")
        worker.receive(1, 0, 0, 5.0)
        before = descriptors()
        for step in range(50):
            worker.receive(1, step, 0, 5.0)
        assert descriptors() <= before + 1  # the server may still hold what it has just sent


def test_a_wrong_token_is_refused():
    with served(lambda generation, step, rank, wait: pack(arrays())) as connect, pytest.raises(Refused, match="token"):
        connect("other").receive(1, 0, 0, 5.0)


def test_a_request_of_an_older_generation_is_stale():
    def provide(generation: int, step: int, rank: int, wait: float) -> Buffer:
        raise Stale("generation 1 is over; the current one is 2")

    with served(provide) as connect, pytest.raises(Stale, match="current one is 2"):
        connect("t").receive(1, 0, 0, 5.0)


def test_a_fault_of_the_data_reaches_the_worker_by_its_name():
    def provide(generation: int, step: int, rank: int, wait: float) -> Buffer:
        raise Refused("SourceChanged", "a.txt is not what was indexed")

    with served(provide) as connect, pytest.raises(Refused, match=r"a\.txt") as caught:
        connect("t").receive(1, 0, 0, 5.0)
    assert caught.value.reason == "SourceChanged"


def test_a_step_that_never_comes_ends_at_the_deadline():
    with served(lambda generation, step, rank, wait: None) as connect, pytest.raises(Retryable, match="step 4"):
        connect("t").receive(1, 4, 0, 0.05)


def test_a_worker_whose_world_is_over_waits_for_no_data_whether_the_constructor_is_there_or_not():
    over, asked = threading.Event(), list[float]()

    def never(generation: int, step: int, rank: int, wait: float) -> None:
        asked.append(wait)
        over.set()

    name = f"\0coxswain-test-{uuid.uuid4()}"
    server, worker = HandoverServer(name, "t", never), Handover(name, "t", over.is_set)
    with pytest.raises(Stale, match="generation 1 is over, and step 4 has no data yet"):
        worker.receive(1, 4, 0, 30.0)
    assert asked == [1.0]
    server.close()
    worker.close()
    with pytest.raises(Stale):
        Handover(f"\0coxswain-test-{uuid.uuid4()}", "t", over.is_set).receive(1, 0, 0, 30.0)


def test_without_a_constructor_the_deadline_names_it():
    with pytest.raises(Retryable, match="constructor is unreachable"):
        Handover(f"\0coxswain-test-{uuid.uuid4()}", "t").receive(1, 0, 0, 0.05)


def test_a_worker_finds_the_constructor_again_after_its_restart():
    name = f"\0coxswain-test-{uuid.uuid4()}"
    first = HandoverServer(name, "t", lambda generation, step, rank, wait: pack(arrays(1, step)))
    worker = Handover(name, "t")
    worker.receive(1, 0, 0, 5.0)
    first.close()
    worker.close()
    got: list[StepArrays] = []
    thread = threading.Thread(target=lambda: got.append(worker.receive(1, 1, 0, 20.0)))
    thread.start()
    second = HandoverServer(name, "t", lambda generation, step, rank, wait: pack(arrays(1, step)))
    thread.join(20)
    second.close()
    worker.close()
    assert got[0].step == 1


def test_a_ready_step_is_handed_over_within_two_milliseconds_where_nothing_else_has_the_processor():
    built = pack(arrays(1, 0, 65536))
    with served(lambda generation, step, rank, wait: built) as connect:
        worker = connect("t")
        seconds = []
        for _ in range(300):
            began = time.perf_counter()
            worker.receive(1, 0, 0, 5.0)
            seconds.append(time.perf_counter() - began)
    quickest = np.quantile(seconds, 0.05)  # the others may have waited for a processor
    assert quickest <= 0.002, f"p5 {quickest:.6f} p50 {np.median(seconds):.6f}"


def test_an_error_that_nothing_expects_reaches_the_worker_by_its_name_and_the_constructor_goes_on():
    errors: list[Exception] = [ValueError("no such rank")]

    def provide(*_: object) -> Buffer:
        if errors:
            raise errors.pop()
        return pack(arrays())

    with served(provide) as connect:
        worker = connect("t")
        with pytest.raises(Retryable, match="the constructor failed: ValueError: no such rank"):
            worker.receive(1, 0, 0, 5)
        assert worker.receive(1, 0, 0, 5).step == 0


def test_a_constructor_that_may_start_no_thread_for_a_moment_serves_the_worker_that_connects_again(monkeypatch):
    start, refused = threading.Thread.start, list[str]()

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "handover-peer" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with served(lambda *_: pack(arrays())) as connect:
        assert connect("t").receive(1, 0, 0, 20).step == 0
    assert refused
