"""The waits of a worker for its saves: what ends them, and what does not."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from coxswain import wire
from coxswain.boxes import Box
from coxswain.errors import Retryable, Stale
from coxswain_link.store import open_store
from coxswain_train.checkpoint.save_load import Saver
from coxswain_train.checkpoint.snapshots import HostSnapshots
from coxswain_train.worker.saves import Saves
from coxswain_train.worker.world_check import WorldCheck


class Slow(HostSnapshots):
    """Whose copies are done once `written` is set."""

    def __init__(self) -> None:
        self.written = threading.Event()

    def take(self, state: Any) -> Any:
        return [], SimpleNamespace(wait=bool, synchronize=self.written.wait)


def directive_of(end: Literal["Completed", "Suspended", "Moved", ""]) -> wire.StepDirective:
    return wire.StepDirective(step=5, checkpoint=True, end=end, plan=None)


@pytest.mark.parametrize(
    "wait",
    [
        lambda saves: saves.wait(),
        lambda saves: saves.begin(directive_of(""), lambda: pytest.fail("it takes a snapshot")),
        lambda saves: saves.wait_at_end(directive_of("Completed")),
        lambda saves: saves.wait_at_end(directive_of("Suspended")),
    ],
    ids=["before a change", "before the next save", "at the end", "at a stop"],
)
def test_a_save_that_is_under_way_keeps_no_worker_in_a_world_that_is_over(
    tmp_path: Path, wait: Callable[[Saves], Any]
) -> None:
    """Else its agent ends it, and with it the state that it holds."""
    slow, over = Slow(), iter([False, True])
    saver = Saver(open_store(f"file://{tmp_path}"), slow)
    saver.begin({}, lambda *_: None)
    with pytest.raises(Stale, match="generation 7 is over"):
        wait(Saves(saver, Sent(0), WorldCheck(7, lambda: next(over)), 0, 1))  # type: ignore[arg-type]
    assert next(over, None) is None, "it has looked twice"
    slow.written.set()
    saver.wait()


class Sent:
    """An outbox that sends at once. Peers have saved when it is asked for the nth time, and have written so many parts before."""

    def __init__(self, after: int, parts: int = 0) -> None:
        self._left, self._parts, self.saving = after, parts, 0

    def flush(self, seconds: float, saved: int = 0) -> None:
        raise Retryable("not all is saved")

    def has_sent(self, seconds: float, saved: int = 0) -> bool:
        self._left -= saved > 0
        self.saving = min(self.saving + (saved > 0), self._parts)
        return not saved or self._left < 0


def at_the_end(tmp_path: Path, sent: Sent, over: Callable[[], bool], clock: Callable[[], float]) -> Saves:
    """The saves of a worker that has saved what it holds, and whose peers have not."""
    return Saves(Saver(open_store(f"file://{tmp_path}")), sent, WorldCheck(7, over), 0, 2, clock)  # type: ignore[arg-type]


def test_a_worker_that_has_saved_all_at_the_end_waits_for_its_peers_as_long_as_the_world_goes_on(
    tmp_path: Path,
) -> None:
    """Before, it gave up after ten minutes, and the others saved all that they had again."""

    def waits(over: Iterable[bool]) -> None:
        looks, hours = iter(over), itertools.count(step=3600)
        at_the_end(tmp_path, Sent(9), lambda: next(looks), lambda: float(next(hours))).wait_at_end(
            directive_of("Completed")
        )

    waits([False] * 9)
    with pytest.raises(Stale, match="generation 7 is over"):
        waits([False, True])


@pytest.mark.parametrize(("parts", "looks"), [(9, 9), (4, 6), (0, 2)])
def test_a_worker_at_a_stop_waits_for_its_peers_as_long_as_they_write_parts_of_their_save(
    tmp_path: Path, parts: int, looks: int
) -> None:
    """Each look takes 20 s. Before, it left after 10 s, and where the coordinator failed behind that its part of the save was
    lost."""
    asked = list[None]()
    saves = at_the_end(tmp_path, Sent(9, parts), lambda: bool(asked.append(None)), lambda: float(20 * len(asked)))
    saves.wait_at_end(directive_of("Suspended"))
    assert len(asked) == looks


def test_the_end_of_a_run_without_a_checkpoint_of_its_last_steps_is_an_error(tmp_path: Path) -> None:
    """At a stop the same ends the wait: a peer may train on alone."""

    class Refusing(Sent):
        def has_sent(self, seconds: float, saved: int = 0) -> bool:
            if saved:
                raise Retryable("the coordinator is gone")
            return True

    saves = at_the_end(tmp_path, Refusing(0), lambda: False, lambda: 0.0)
    saves.wait_at_end(directive_of("Suspended"))
    with pytest.raises(Retryable, match="the coordinator is gone"):
        saves.wait_at_end(directive_of("Completed"))


def test_a_stop_gives_reports_that_are_still_to_be_sent_more_time_than_a_save_of_peers(tmp_path: Path) -> None:
    class Unsent(Sent):
        def has_sent(self, seconds: float, saved: int = 0) -> bool:
            return bool(saved) or len(asked) > 20

    asked = list[None]()
    saves = at_the_end(tmp_path, Unsent(0), lambda: bool(asked.append(None)), lambda: float(20 * len(asked)))
    saves.wait_at_end(directive_of("Suspended"))
    assert len(asked) == 21


@pytest.mark.parametrize(("ranks", "beside"), [(127, False), (128, True)])
def test_the_shards_of_a_large_world_have_their_boxes_beside_them(tmp_path: Path, ranks: int, beside: bool) -> None:
    """Else one manifest would list those of every rank."""

    class Keeping(Sent):
        def put(self, path: str, step: int, report: wire.ShardsSaved) -> None:
            reports.append(report)

        def advance(self) -> None: ...

    reports = list[wire.ShardsSaved]()
    saver, check = Saver(open_store(f"file://{tmp_path}")), WorldCheck(7, lambda: False)
    saves = Saves(saver, Keeping(0), check, 3, ranks)  # type: ignore[arg-type]
    saves.begin(directive_of(""), lambda: {"master": {Box("w", (0,), (2,)): torch.ones(2)}})
    saves.wait()
    assert [(r.generation, r.rank, r.ranks) for r in reports] == [(7, 3, ranks)]
    assert (not reports[0].shards[0].boxes) == beside
