"""What a worker holds of the training state between two layouts, and what it forgets."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from coxswain.config import OptimizerConfig
from coxswain.errors import Refused
from coxswain.live import Held
from coxswain_train.live.state import Cut, Finished, LiveState, PendingStep
from coxswain_train.parallel.state import KINDS
from coxswain_train.parallel.zero1 import GlobalStats
from tests.unit.living_samples import STATS, pending, state_of


def cut(generation: int = 4, **changes: Any) -> Cut:
    return Cut(generation, 1, 8, state_of(), **changes)


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (cut(), Held(3, 4, 1, 8)),
        (cut(ward=2), Held(3, 4, 1, 8, "", (2,))),
        (cut(ward=0), Held(3, 4, 1, 8, "", (0,))),
        (cut(pending=pending(8)), Held(3, 4, 1, 8, "Reduced")),
        (cut(pending=pending(8, STATS)), Held(3, 4, 1, 8, "Agreed")),
        (cut(whole=False), None),
    ],
)
def test_a_worker_says_of_its_cut_how_far_it_is_and_nothing_of_one_whose_update_broke_off(
    found: Cut, held: Held | None
) -> None:
    assert found.held(3) == held
    live = LiveState()
    assert live.all_held(3) == ()
    live.begin(found)
    assert live.all_held(3) == ((held,) if held else ())


def test_a_thread_that_asks_what_is_held_while_a_step_ends_gets_an_answer() -> None:
    """Between two looks the step is updated: the thread that hears orders would end by an error."""

    class Updated(Cut):
        looks = iter([pending(8), None])
        pending = property(lambda self: next(self.looks), lambda self, value: None)

    assert Updated(4, 1, 8, state_of()).held(3) == Held(3, 4, 1, 8, "Reduced")


def test_a_worker_between_two_layouts_holds_both_until_one_is_kept() -> None:
    old, new = cut(4), cut(5)
    live = LiveState(old, new, weights={})
    assert [held.generation for held in live.all_held(0)] == [4, 5]
    assert (live.choose(4), live.choose(5), live.choose(6)) == (old, new, None)
    live.keep(old)
    assert (live.current, live.prepared, live.weights) == (old, None, {})
    live.prepared = new
    live.keep(new)
    assert (live.current, live.prepared, live.weights) == (new, None, None)
    live.keep(None)
    assert live.current is None and live.choose(5) is None


def test_a_worker_that_begins_with_restored_state_holds_no_weights_and_no_layout_of_before() -> None:
    """Weights of another step would be given to the model of the next world."""
    live, restored = LiveState(cut(4), cut(5), weights={}), cut(6)
    live.begin(restored)
    assert (live.current, live.prepared, live.weights) == (restored, None, None)


def test_a_cut_whose_update_broke_off_is_never_chosen() -> None:
    assert LiveState(cut(4, whole=False)).choose(4) is None
    assert LiveState(None, cut(5, whole=False)).choose(5) is None


def test_a_worker_that_forgets_keeps_room_and_nothing_else() -> None:
    live = LiveState(cut(), cut(5), weights={}, unreported=Finished(7, 1.5))
    room = live.own
    live.forget()
    assert live.own is room
    assert (live.current, live.prepared, live.weights, live.unreported, live.all_held(0)) == (
        None,
        None,
        None,
        None,
        (),
    )


def test_room_that_is_no_longer_used_is_freed_where_another_layout_is_kept() -> None:
    """The state of two layouts would stay in memory from the first change on."""
    live = LiveState(cut(4))
    live.forget()
    room = weakref.ref(live.own)
    live.begin(Cut(5, 1, 8, live.own))
    assert room() is live.own
    live.keep(cut(6))
    assert room() is None


@pytest.mark.parametrize("matrices", [(), ("a",)], ids=["AdamW", "Muon"])
def test_an_update_of_shard_and_copy_is_the_same_and_what_is_unreported_is_known(matrices: tuple[str, ...]) -> None:
    live, config = LiveState(weights={}), OptimizerConfig(learning_rate=0.1)
    live.begin(Cut(4, 1, 8, state_of(1.0), 2, state_of(1.0)))
    live.weights = {}
    live.reduced(PendingStep(8, torch.full((6,), 2.0), torch.full((6,), 2.0), 1.5))
    live.agreed(STATS)
    live.update(config, 0.1, matrices)
    found, done = live.current, live.unreported
    assert found is not None and found.copy is not None and done is not None
    for kind in KINDS:
        (own,), (copy,), (before,) = (state.values(kind) for state in (found.own, found.copy, state_of(1.0)))
        changes = kind != "exp_avg_sq" or not matrices
        assert torch.equal(own, copy) and torch.equal(own, before) is not changes
    assert (found.step, found.pending, found.agreed, found.whole, live.weights) == (9, None, STATS, True, None)
    assert done == Finished(8, 1.5)


def test_a_worker_whose_update_broke_off_holds_nothing() -> None:
    """The own shard is updated, the gradient of the copy is on another device."""
    live = LiveState()
    live.begin(Cut(4, 1, 8, state_of(1.0), 2, state_of(1.0)))
    live.reduced(PendingStep(8, torch.full((6,), 2.0), torch.empty(6, device="meta"), 1.5))
    live.agreed(STATS)
    with pytest.raises(RuntimeError):
        live.update(OptimizerConfig(learning_rate=0.1), 0.1, ())
    assert not torch.equal(live.own.values("parameter")[0], torch.ones(2, 3))
    assert (live.all_held(0), live.choose(4)) == ((), None)


def test_a_gradient_that_is_not_finite_changes_nothing_of_what_is_held() -> None:
    live = LiveState()
    live.begin(Cut(4, 1, 8, state_of(1.0)))
    live.reduced(pending(8))
    live.agreed(GlobalStats(7.0, float("nan")))
    with pytest.raises(Refused, match="gradient norm nan"):
        live.update(OptimizerConfig(learning_rate=0.1), 0.1, ())
    assert live.all_held(0) == (Held(0, 4, 1, 8, "Agreed"),) and torch.equal(
        live.own.values("parameter")[0], torch.ones(2, 3)
    )
