"""What a worker keeps of its state where the next world cannot go on from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coxswain.errors import Retryable
from coxswain.layout import Device, uniform_layout
from coxswain.live import Holder, LiveSource
from coxswain_train.live.claims import NotHeld
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.parallel.state import State
from coxswain_train.worker.takeover import take_over
from coxswain_train.worker.worlds import StateNotTaken

SOURCE = LiveSource(1, uniform_layout([Device(0, 0)], layers=2), 5, (Holder(0, 0),))


class Broken:
    """An engine whose change of state raises this."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def take_over(self, *_: Any) -> None:
        raise self._error


def held() -> LiveState:
    """What a worker holds as before step 5."""
    live = LiveState()
    live.begin(Cut(1, 0, 5, State()))
    return live


def goes_on(error: Exception, live: LiveState) -> None:
    take_over(Broken(error), live, SOURCE, (), rank=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kept"), [(NotHeld("it holds nothing"), True), (Retryable("contents differ"), False)]
)
def test_a_worker_keeps_what_it_holds_where_another_rank_lacks_what_the_source_says_and_forgets_it_at_any_other_fault(
    error: Retryable, kept: bool
) -> None:
    live = held()
    with pytest.raises(StateNotTaken, match=f"generation 1, step 5: {error}"):
        goes_on(error, live)
    assert (live.current is not None) == kept


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no room")])
def test_a_worker_whose_memory_cannot_hold_a_change_forgets_so_the_next_world_begins_at_a_checkpoint(
    error: Exception,
) -> None:
    """The same change would fail in world after world, until they end the job."""
    live = held()
    with pytest.raises(type(error), match=str(error)):
        goes_on(error, live)
    assert live.all_held(0) == ()


def test_a_fault_of_the_programs_own_forgets_nothing() -> None:
    live = held()
    with pytest.raises(ValueError, match="a shape"):
        goes_on(ValueError("a shape"), live)
    assert live.current is not None
