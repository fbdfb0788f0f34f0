"""What a worker says of a world that broke, how long it waits for the next one, and what ends it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain_train.parallel.process_groups import WorldAborter
from coxswain_train.worker import worlds
from coxswain_train.worker.assignments import Assignment
from coxswain_train.worker.release import free_world, without_frames
from coxswain_train.worker.worlds import StateNotTaken, is_lost_peer, run_worlds

PEER = "gloo/transport/tcp/pair.cc: closed by peer"


class Channel:
    """Assigns so many worlds one after another, then the agent is gone. `said`: all that the worker does, in order."""

    def __init__(self, assigned: int) -> None:
        self.said: list[Any] = []
        self._left = [Assignment(generation, 3) for generation in range(1, assigned + 1)]

    def next(self, patience: float | None, fault: str = "") -> Assignment | None:
        self.said += [("has at fault", fault)] if fault else []
        self.said.append(("waits", patience))
        return self._left.pop(0) if self._left else None

    def step_out(self) -> None:
        self.said.append("steps out")

    def leave(self, why: str = "") -> None:
        self.said.append(("leaves", why))


@pytest.fixture
def aborter() -> WorldAborter:
    return WorldAborter(dict)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, aborter: WorldAborter) -> Callable[..., Any]:
    """Trains in successive worlds, each of which ends so: with a number, None, or an error. Returns what the worker did."""

    def run(ends: Iterable[Any], assigned: int | None = None, over: Iterable[int] = ()) -> tuple[list[Any], Any]:
        outcomes = list(ends)
        channel = Channel(len(outcomes) if assigned is None else assigned)
        monkeypatch.setattr(worlds, "leave_world", lambda: channel.said.append("leaves its groups"))
        monkeypatch.setattr(worlds, "free_world", lambda: channel.said.append("frees"))

        def train(assignment: Assignment) -> int | None:
            if assignment.generation in over:
                aborter.abort_world()
            outcome = outcomes[assignment.generation - 1]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome  # type: ignore[no-any-return]

        try:
            return channel.said, run_worlds(channel, aborter, train)  # type: ignore[arg-type]
        except Exception as error:
            return channel.said, error

    return run


def words(said: list[Any]) -> list[str]:
    return [each[1] for each in said if each[0] == "leaves"]


def faults(said: list[Any]) -> list[str]:
    return [each[1] for each in said if each[0] == "has at fault"]


def waits(said: list[Any]) -> list[float | None]:
    return [each[1] for each in said if each[0] == "waits"]


def test_between_worlds_a_worker_steps_out_leaves_its_groups_says_so_and_frees_what_it_held(run: Any) -> None:
    """In this order: nothing aborts what leaves its groups, and the next world is agreed on while it frees."""
    said, code = run([None, 7])
    assert code == 7
    assert said == [
        ("waits", None), "steps out", "leaves its groups", ("leaves", ""), "frees", ("waits", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["gloo/transport/tcp/pair.cc", "gloo/rendezvous/context.cc", "Connection reset by peer",
     "NCCL communicator was aborted on rank 1"],
)  # fmt: skip
def test_a_worker_that_lost_a_peer_says_so_at_once_and_waits_as_long_as_it_must(run: Any, text: str) -> None:
    said, code = run([RuntimeError(f"[a] {text}: b\nand a stack"), 0])
    assert (code, words(said), waits(said)) == (0, [f"[a] {text}: b"], [None, None])


def test_what_gloo_guesses_and_where_its_sources_were_is_left_out_of_what_a_worker_says(run: Any) -> None:
    place = "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] "
    rest = " This is typically caused by a remote worker hanging or bugs in the application. Check the logs. GLHF!"
    said, _ = run([RuntimeError(f"{place}Read error [10.0.0.7]:59546: Connection reset by peer.{rest}"), 0])
    assert words(said) == ["Read error [10.0.0.7]:59546: Connection reset by peer"]
    said, _ = run([RuntimeError("[3] shapes at /a/b.py:7 do not match"), 0])
    assert faults(said) == ["[3] shapes at /a/b.py:7 do not match"]


@pytest.mark.parametrize("error", [Stale("of generation 1"), StateNotTaken("it is not held")])
def test_a_world_that_is_over_or_cannot_take_its_state_is_no_fault_of_the_worker(run: Any, error: Exception) -> None:
    said, code = run([error, 0])
    assert (code, words(said), waits(said), faults(said)) == (0, [str(error)], [None, None], [])


def test_what_a_worker_says_of_a_lost_peer_is_five_hundred_characters_at_most(run: Any) -> None:
    (said,) = words(run([RuntimeError(PEER + "x" * 1000), 0])[0])
    assert said == (PEER + "x" * 1000)[:500]


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), Retryable("no data")])
def test_a_worker_whose_own_fault_it_may_be_waits_three_seconds_for_an_order_to_answer_with_its_fault(
    run: Any, error: Exception
) -> None:
    said, code = run([error, 0])
    assert (code, words(said), waits(said), faults(said)) == (0, [], [None, 3.0], [str(error)])


class Mute(RuntimeError):
    """A user's own, whose text fails."""

    def __str__(self) -> str:
        raise AttributeError("absent")


@pytest.mark.parametrize(
    ("error", "text"),
    [(Mute(), "(its text fails with AttributeError)"), (RuntimeError("of \udcff"), "of \\udcff")],
    ids=["fails", "no text"],
)
def test_an_error_whose_text_fails_or_is_none_is_said_as_far_as_a_message_can_carry_it(
    run: Any, error: Exception, text: str
) -> None:
    """Another error came in its place, and the worker ended without a fault."""
    said, code = run([error, 0])
    assert (code, faults(said)) == (0, [text])


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("a group is gone"), Retryable("no")])
def test_whatever_breaks_in_a_world_that_is_over_is_excused_by_its_end(run: Any, error: Exception) -> None:
    said, code = run([error, 0], over=[1])
    assert (code, words(said), waits(said)) == (0, [""], [None, None])


def test_the_end_of_one_world_excuses_no_fault_in_the_next(run: Any) -> None:
    said, error = run([RuntimeError("cut"), ValueError("wrong")], over=[1])
    assert isinstance(error, ValueError) and words(said) == [""]
    said, error = run([RuntimeError("cut"), RuntimeError("wrong")], over=[1])
    assert isinstance(error, Retryable) and waits(said) == [None, None, 3.0]


@pytest.mark.parametrize("over", [(), (1,)])
def test_a_refusal_is_not_excused_by_the_end_of_its_world(run: Any, over: tuple[int, ...]) -> None:
    refusal = Refused("SourceChanged", "it is another")
    said, error = run([refusal, 0], over=over)
    assert error is refusal and said == [("waits", None)]


def test_a_worker_without_an_agent_ends_as_its_last_world_did(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[tuple[Any, type[CoxswainError], str]] = [
        (None, Retryable, "the agent is gone"),
        (Stale("of generation 1"), Stale, "of generation 1"),
        (RuntimeError("shapes\ndo not match"), Retryable, "rank 3: shapes"),
    ]
    for end, kind, text in ends:
        error = run([end])[1]
        assert type(error) is kind and str(error) == text
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.getMessage().startswith("rank 3\nTraceback") and "do not match" in record.getMessage()


@pytest.mark.parametrize("text", [PEER, "NCCL communicator was aborted"])
def test_only_torchs_own_kind_of_error_says_that_a_peer_is_lost(text: str) -> None:
    assert is_lost_peer(RuntimeError(text)) and not is_lost_peer(ValueError(text))
    assert not is_lost_peer(Retryable(text)) and not is_lost_peer(RuntimeError("shapes do not match"))
    assert not is_lost_peer(RuntimeError(f"Duplicate GPU detected: {text}"))


def broken_in(weight: torch.Tensor, error: Exception, held: list[weakref.ref[torch.Tensor]]) -> Exception:
    """The error, with a frame that holds what was computed."""
    inner = weight + 1
    held.append(weakref.ref(inner))
    try:
        raise error
    except type(error) as raised:
        return raised


@pytest.mark.parametrize("hidden", [True, False])
def test_an_error_loses_the_frames_of_all_behind_it_also_where_their_words_are_hidden(hidden: bool) -> None:
    """Of what was raised before as well as of what is named as its cause."""
    held: list[weakref.ref[torch.Tensor]] = []
    weight, last = torch.zeros(3), ValueError("the last")
    last.__context__ = broken_in(weight, KeyError("the first"), held)
    last.__cause__ = None if hidden else broken_in(weight, OSError("the cause"), held)
    kept = broken_in(weight, last, held)
    assert all(ref() is not None for ref in held) and len(held) == 3 - hidden
    text = without_frames(kept)
    assert "the last" in text and ("the cause" in text) is not hidden and "the first" not in text
    assert [ref() for ref in held] == [None] * len(held) and kept.__context__ is not None


def test_what_only_a_ring_of_references_holds_is_freed_with_its_world() -> None:
    class Held:
        """Refers to itself, as an engine and its hooks do."""

    one = Held()
    one.itself = one  # type: ignore[attr-defined]
    ref = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert ref() is not None
        free_world()
    finally:
        gc.enable()
    assert ref() is None


def test_errors_that_are_each_others_reason_lose_their_frames() -> None:
    one, other = ValueError("one"), KeyError("other")
    for error in (one, other):
        try:
            raise error
        except (ValueError, KeyError):
            pass
    one.__context__, other.__context__ = other, one
    without_frames(one)
    assert one.__traceback__ is None and other.__traceback__ is None
