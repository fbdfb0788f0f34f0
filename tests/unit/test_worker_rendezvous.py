"""How a rank finds the address of rank 0, and what ends that wait."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coxswain import wire
from coxswain.errors import Refused, Retryable, Stale
from coxswain_train.worker import rendezvous as module
from coxswain_train.worker.assignments import Assignment
from coxswain_train.worker.rendezvous import fetch_world, rendezvous
from coxswain_train.worker.world_check import WorldCheck

ADDRESS = wire.Rendezvous(4, "10.0.0.7", 29500)
GONE = Retryable("did not succeed within 5 s")


class Calls:
    """As client and outbox: answers in turn, or raises. `heard`: what the outbox was asked for; `fault`: of its thread."""

    def __init__(self, *answers: Any, fault: Exception | None = None) -> None:
        self._answers, self._fault, self.heard = list(answers), fault, list[str]()

    def get(self, path: str, type_: type, generation: int) -> Any:
        assert (path.partition("&")[0], generation) == ("/v1/rendezvous?generation=4", 4)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def check(self) -> None:
        if self._fault:
            raise self._fault

    def put(self, path: str, step: int, body: Any) -> None:
        self.heard.append(f"{path} {step} {body.host}:{body.port}")

    def mark_unreachable(self) -> None:
        self.heard.append("unreachable")

    def await_answer(self, seconds: float) -> None:
        self.heard.append("waits")

    @property
    def left(self) -> int:
        return len(self._answers)


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Joins as rank 1 of two; returns the address at which it does. `over`: after so many calls the world is."""
    monkeypatch.setattr(module, "join", lambda host, port, ranks: (host, port, ranks))
    monkeypatch.setattr(module, "ProcessGroups", lambda store, rank, ranks, device, is_aborted: store)

    def join(calls: Any, over: int | None = None) -> Any:
        world: Any = SimpleNamespace(seats=(0, 1), first_step=0)
        whole = calls.left
        check = WorldCheck(4, lambda: over is not None and whole - calls.left >= over)
        return rendezvous(calls, calls, Assignment(4, 1), world, "10.0.0.8", torch.device("cpu"), check)

    return join


def test_a_rank_joins_once_rank_0_has_said_its_address(join: Callable[..., Any]) -> None:
    calls = Calls(None, None, ADDRESS)
    assert join(calls) == ("10.0.0.7", 29500, 2)
    assert calls.heard == []


def test_a_coordinator_that_is_gone_meanwhile_is_waited_for(join: Callable[..., Any]) -> None:
    calls = Calls(GONE, GONE, None, ADDRESS)
    assert join(calls) == ("10.0.0.7", 29500, 2)
    assert calls.heard == ["unreachable", "waits"] * 2


@pytest.mark.parametrize("answer", [None, GONE])
def test_a_rank_whose_world_is_over_does_not_wait_for_rank_0(join: Callable[..., Any], answer: Any) -> None:
    """The order to leave cuts each call: repeated within one, it took half a minute to leave."""
    calls = Calls(answer, answer, ADDRESS)
    with pytest.raises(Stale, match="generation 4 is over"):
        join(calls, over=2)
    assert calls.left == 1


@pytest.mark.parametrize("fault", [Stale("generation 4 is over"), Refused("TokenRejected", "the token is refused")])
def test_what_heartbeats_are_answered_ends_the_wait(join: Callable[..., Any], fault: Exception) -> None:
    calls = Calls(None, fault=fault)
    with pytest.raises(type(fault)):
        join(calls)
    assert calls.left == 1


def test_a_rank_gives_up_after_ten_minutes_without_rank_0(
    join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = count(0.0, 60.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    calls = Calls(*[None] * 20)
    with pytest.raises(Retryable, match="rank 1: rank 0 of generation 4 did not open its store"):
        join(calls)
    assert calls.left == 20 - 9


def test_rank_0_opens_the_store_and_says_where_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = Calls()
    monkeypatch.setattr(module, "listen", lambda host, ranks: SimpleNamespace(port=29500, ranks=ranks))
    monkeypatch.setattr(
        module, "ProcessGroups", lambda store, rank, ranks, device, is_aborted: (calls.heard[:], store.ranks)
    )
    world: Any = SimpleNamespace(seats=(0, 1), first_step=7)
    check = WorldCheck(4, lambda: False)
    found = rendezvous(calls, calls, Assignment(4, 0), world, "10.0.0.7", torch.device("cpu"), check)
    assert found == (["/v1/rendezvous 7 10.0.0.7:29500"], 2)


@pytest.mark.parametrize(
    ("generation", "words"), [(5, "the world's is 5"), (3, "the world's is 3"), (None, "the world's is none")]
)
def test_a_rank_begins_in_no_other_world_than_its_own(generation: int | None, words: str) -> None:
    asked = list[Any]()

    def client(found: int | None) -> Any:
        world = None if found is None else SimpleNamespace(generation=found)
        return SimpleNamespace(
            get=lambda path, type_, **query: asked.append((path, query["after"], query["wait"] > 1)) or world
        )

    with pytest.raises(Stale, match=f"rank 1 was started for generation 4, {words}"):
        fetch_world(client(generation), Assignment(4, 1))
    assert fetch_world(client(4), Assignment(4, 1)).generation == 4
    assert asked == [("/v1/world", 3, True)] * 2
