"""State that outlives worlds: the layout changes in running workers, and training goes on as if it had not."""

from __future__ import annotations

import functools
import itertools
import random
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain.boxes import Box
from coxswain.errors import Retryable
from coxswain.layout import Device, Layout
from coxswain.live import Held, LiveSource
from coxswain_train.live import takeover
from coxswain_train.live.digests import content_of
from coxswain_train.live.takeover import TakeOver
from tests.distributed import training
from tests.distributed.cuts import Outcome, run_cut
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.distributed.worlds import Job, begin, go_on, numbered, on, run_through
from tests.layouts import layout_of

STEPS = 6
STREAM = Stream(lengths=(1, 3, 16, 29, 41), vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3, tied_head=True)
WHOLE = [(1, 3)]


def job_of(dtype: torch.dtype = torch.float64, copies: bool = False) -> Job:
    return Job(MODEL, STREAM, dtype, copies=copies)


@functools.cache
def baseline(layout: Layout, dtype: torch.dtype = torch.float64, steps: int = STEPS) -> dict[int, float]:
    job = job_of(dtype)
    run_through(job, {0: layout}, steps)
    return job.losses


STAGES = layout_of([(1, 1), (1, 3)])
CHANGES = {
    "another replica": (layout_of(WHOLE), layout_of(WHOLE, WHOLE)),
    "a tensor group": (layout_of(WHOLE), layout_of([(2, 3)])),
    "stages and unequal replicas": (layout_of(WHOLE, [(1, 1), (1, 3)]), layout_of([(2, 1), (1, 3)], WHOLE)),
}
MOVES = {
    "one replica": (STAGES, layout_of([(1, 2), (1, 3)])),
    "two replicas": (layout_of(*[[(1, 1), (1, 3)]] * 2), layout_of(*[[(1, 2), (1, 3)]] * 2)),
    "another stage": (STAGES, layout_of([(1, 1), (1, 2), (1, 3)])),
}


def changed(job: Job, change: tuple[Layout, Layout]) -> dict[int, float]:
    """Losses of a job that goes from the first layout to the second after half its steps."""
    run_through(job, dict(zip((0, STEPS // 2), map(numbered, change), strict=True)), STEPS)
    return job.losses


@pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_training_goes_on_in_another_layout_as_in_the_first(change: tuple[Layout, Layout], copies: bool) -> None:
    assert changed(job_of(copies=copies), change) == pytest.approx(baseline(numbered(change[0])), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("change", MOVES.values(), ids=MOVES)
def test_losses_and_norms_have_the_same_bits_where_only_layers_move(
    change: tuple[Layout, Layout], dtype: torch.dtype
) -> None:
    job, plain = job_of(dtype), job_of(dtype)
    changed(job, change)
    run_through(plain, {0: numbered(change[0])}, STEPS)
    assert (job.losses, job.norms) == (plain.losses, plain.norms)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(60))
def test_training_goes_on_in_any_layout_as_in_any_other(seed: int) -> None:
    """Three layouts of one to four replicas of one to three stages of tensor degree one or two; with Muon, copies and fp32."""
    rng = random.Random(seed)
    dtype, kind = rng.choice((torch.float64, torch.float32)), rng.choice(("AdamW", "Muon"))
    degrees = (1, 2) if kind == "AdamW" else (1,)
    job = job_of(dtype, copies=rng.random() < 0.5)
    job.optimizer = replace(job.optimizer, kind=kind)
    layouts = {step: numbered(drawn(rng, degrees), each=rng.choice((1, 2))) for step in (0, 2, 4)}
    most = max(layouts.values(), key=lambda layout: len(layout.ranks()))
    layouts = {step: on(layout, [seat.device for seat in most.ranks()]) for step, layout in layouts.items()}
    kept = [layouts[0]]
    for layout in list(layouts.values())[1:]:  # a device that leaves takes its shard along
        kept.append(layout if len(layout.ranks()) >= len(kept[-1].ranks()) else kept[-1])
    run_through(job, dict(zip(layouts, kept, strict=True)), STEPS)
    plain = job_of(dtype)
    plain.optimizer = job.optimizer
    run_through(plain, {0: kept[0]}, STEPS)
    assert job.losses == pytest.approx(plain.losses, abs=1e-12 if dtype == torch.float64 else 1e-5)


def drawn(rng: random.Random, degrees: Sequence[int]) -> Layout:
    replicas = []
    for _ in range(rng.randint(1, 4)):
        cuts = sorted(rng.sample((1, 2), rng.randint(0, 2)))
        replicas.append([(rng.choice(degrees), stop) for stop in (*cuts, 3)])
    return layout_of(*replicas)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])
def test_a_change_of_layout_leaves_the_content_as_it_was(copies: bool, dtype: torch.dtype) -> None:
    """Also that of bf16 weights, as on a GPU, whose state is wider: shards and copies keep all of its bits."""
    job = job_of(dtype, copies)
    finish(first_world(job, steps=2))
    before = job.contents()
    source, generation = job.source(SECOND), job.form(SECOND)
    run_threads(3, go_on, job, generation, source, 2)
    assert job.contents() == before
    assert [live.current.generation for live in job.workers.values() if live.current] == [generation] * 3
    if copies:
        cuts = [job.cut(seat.device) for seat in SECOND.ranks()]
        assert all(c.copy and content_of(c.copy.boxes()) == content_of(cuts[c.ward or 0].own.boxes()) for c in cuts)


def test_weights_that_stay_in_their_box_stay_where_they_are() -> None:
    job = job_of()
    finish(first_world(job, steps=2))
    before = {d: {box: w.data_ptr() for box, w in (live.weights or {}).items()} for d, live in job.workers.items()}
    source, generation = job.source(SECOND), job.form(SECOND)
    run_threads(3, go_on, job, generation, source, 2)
    after = {d: {box: w.data_ptr() for box, w in (live.weights or {}).items()} for d, live in job.workers.items()}
    same = [(before[d][box], found[box]) for d, found in after.items() for box in found.keys() & before[d].keys()]
    assert same and all(old == new for old, new in same)


def state_at(job: Job) -> dict[tuple[Device, str, Box], int]:
    """Where each worker holds each box of its own shard and of its copy."""
    cuts = {device: live.current for device, live in job.workers.items() if live.current is not None}
    states = [(device, state) for device, cut in cuts.items() for state in (cut.own, cut.copy) if state is not None]
    return {
        (device, kind, box): values.data_ptr()
        for device, state in states
        for kind, boxes in state.boxes().items()
        for box, values in boxes.items()
    }


@pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])
def test_state_that_stays_in_its_box_stays_where_it_is(copies: bool) -> None:
    """A layer goes to the other stage. With copies each rank holds the shards of both stages, in other turns."""
    job, (before, after) = job_of(copies=copies), map(numbered, MOVES["one replica"])
    run_threads(2, begin, job, job.form(before), range(2))
    old = state_at(job)
    source, generation = job.source(after), job.form(after)
    run_threads(2, go_on, job, generation, source, 2)
    new = state_at(job)
    same = new.keys() & old.keys()
    assert same and all(old[each] == new[each] for each in same)
    assert (new.keys() == old.keys()) is copies
    assert len(set(new.values())) == len(new)


def test_a_copy_that_the_source_does_not_name_gives_nothing_to_the_new_state() -> None:
    """Its content is another one, as of a copy that is behind."""
    job, (before, after) = job_of(copies=True), map(numbered, MOVES["one replica"])
    run_threads(2, begin, job, job.form(before), range(2))
    contents, source, generation = job.contents(), job.source(after), job.form(after)
    for live in job.workers.values():
        assert live.current is not None and live.current.copy is not None
        live.current.copy.clear()
    own = tuple(holder for holder in source.holders if not holder.copy)
    run_threads(2, go_on, job, generation, replace(source, holders=own), 2)
    assert job.contents() == contents
    cuts = [job.cut(seat.device) for seat in after.ranks()]
    assert all(c.copy and content_of(c.copy.boxes()) == content_of(cuts[c.ward or 0].own.boxes()) for c in cuts)


FEWER = Stream(lengths=STREAM.lengths, vocabulary=training.VOCABULARY - 8)


def begin_without_last_rows(world: Any, job: Job, generation: int, steps: Sequence[int]) -> None:
    """As where imported weights lack the rows of no id: they are zero."""
    engine = job.engine(world, generation)
    engine.initialise(training.SEED)
    for box, values in engine.boxes()["parameter"].items():
        if box.name == "model.embed_tokens.weight":
            values[max(0, FEWER.vocabulary - box.offset[0]) :] = 0.0
    engine.begin(0)
    job.train(engine, job.layouts[generation], steps)


def test_rows_of_no_id_stay_out_of_the_loss_in_the_next_layout() -> None:
    plain, job = (Job(MODEL, FEWER) for _ in range(2))
    run_threads(3, begin_without_last_rows, plain, plain.form(FIRST), range(SHORT))
    run_threads(3, begin_without_last_rows, job, job.form(FIRST), range(1))
    finish(next_world(job, SECOND))
    assert job.losses == pytest.approx(plain.losses, abs=1e-12)


# --- worlds that break -----------------------------------------------------------------------------------------------

FIRST = numbered(layout_of(WHOLE, [(1, 1), (1, 3)]))
SECOND = numbered(layout_of([(1, 2), (1, 3)], WHOLE))
LEFT = layout_of([(1, 1), (1, 3)])
SHORT = 3  # steps
Cut = tuple[int, int]  # a rank, and after how many messages it is cut off


def first_world(job: Job, cuts: Sequence[Cut] = (), steps: int = SHORT) -> list[Outcome]:
    return run_cut(3, begin, job, job.form(FIRST), range(steps), cuts=cuts)


def next_world(job: Job, layout: Layout, cuts: Sequence[Cut] = ()) -> list[Outcome]:
    source, generation = job.source(layout), job.form(layout)
    return run_cut(len(layout.ranks()), go_on, job, generation, source, SHORT, cuts=cuts)


def lose(job: Job, layout: Layout, rank: int) -> Layout:
    """Without the process of that rank; a layout of those that are left."""
    del job.workers[layout.ranks()[rank].device]
    return on(LEFT, list(job.workers))


def finish(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


@functools.cache
def places(steps: tuple[int, int]) -> tuple[Cut, ...]:
    """Every message of every rank between these steps of the first world."""
    counts = [[o.messages for o in first_world(job_of(copies=True), steps=stop)] for stop in steps]
    return tuple((rank, last) for rank in range(3) for last in range(counts[0][rank], counts[1][rank]))


@functools.cache
def places_of_change() -> tuple[Cut, ...]:
    """Every message of every rank in a change of the layout, and in the step after it."""
    job = job_of(copies=True)
    finish(first_world(job, steps=2))
    return tuple((rank, last) for rank, o in enumerate(next_world(job, SECOND)) for last in range(o.messages))


@functools.cache
def places_of_vote(run: Callable[[], Any]) -> tuple[Cut, ...]:
    """Every message of rank 0 in the last vote of a run: some ranks then have the result of it, and others have not."""
    found: list[int] = []
    scalars = ThreadWorld.scalars

    def counted(world: Any, mine: list[float]) -> list[list[float]]:
        before, rows = world.mail.count, scalars(world, mine)
        if world.rank == 0:
            found[:] = range(before, world.mail.count)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadWorld, "scalars", counted)
        finish(run())
    return tuple((0, last) for last in found)


def two_steps() -> list[Outcome]:
    return first_world(job_of(copies=True), steps=2)


def a_change() -> list[Outcome]:
    job = after_two_steps()
    source, generation = job.source(SECOND), job.form(SECOND)
    return run_cut(3, go_on, job, generation, source, 2)


def some(every: Sequence[Cut], number: int) -> list[Cut]:
    return [every[len(every) * i // number] for i in range(number)]


def break_a_step(cut: Cut, *, lost: bool) -> None:
    job = job_of(copies=True)
    first_world(job, [cut])
    finish(next_world(job, lose(job, FIRST, cut[0]) if lost else SECOND))
    assert job.losses == pytest.approx(baseline(FIRST, steps=SHORT), abs=1e-12), cut
    if not lost:
        assert job.reported() == pytest.approx(job.losses, abs=1e-12), cut


def break_a_change(cut: Cut, *, lost: bool) -> None:
    """In a change, then in the change after that too, at the same place."""
    job = job_of(copies=True)
    finish(first_world(job, steps=2))
    next_world(job, SECOND, [cut])
    if not lost:
        next_world(job, FIRST, [cut])
    finish(next_world(job, lose(job, SECOND, cut[0]) if lost else SECOND))
    assert job.losses == pytest.approx(baseline(FIRST, steps=SHORT), abs=1e-12), cut


@pytest.mark.parametrize("lost", [False, True], ids=["all are left", "a rank is lost"])
@pytest.mark.parametrize("breaks", [break_a_step, break_a_change])
def test_a_world_that_breaks_goes_on_from_what_its_ranks_hold(breaks: Callable[..., None], lost: bool) -> None:
    for cut in some(places((1, 2)) if breaks is break_a_step else places_of_change(), 3):
        breaks(cut, lost=lost)


@pytest.mark.parametrize("lost", [False, True], ids=["all are left", "a rank is lost"])
@pytest.mark.parametrize(("breaks", "run"), [(break_a_step, two_steps), (break_a_change, a_change)])
def test_a_world_that_breaks_in_a_vote_goes_on_from_what_its_ranks_hold(
    breaks: Callable[..., None], run: Callable[[], Any], lost: bool
) -> None:
    places = places_of_vote(run)
    assert len(places) == 6
    for cut in places[::2]:
        breaks(cut, lost=lost)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lost", [False, True], ids=["all are left", "a rank is lost"])
@pytest.mark.parametrize("breaks", [break_a_step, break_a_change])
def test_a_world_that_breaks_at_any_message_goes_on_from_what_its_ranks_hold(
    breaks: Callable[..., None], lost: bool
) -> None:
    every = places((1, 2)) if breaks is break_a_step else places_of_change()
    print(f"{len(every)} cuts")
    for cut in every:
        breaks(cut, lost=lost)


# --- what does not count ----------------------------------------------------------------------------------------------


def after_two_steps() -> Job:
    job = job_of(copies=True)
    finish(first_world(job, steps=2))
    return job


def refusals(job: Job, **more: Any) -> set[str]:
    source, generation = job.source(SECOND), job.form(SECOND)
    return {str(o.error) for o in run_cut(3, go_on, job, generation, source, SHORT, **more)}


def kept(job: Job, rank: int) -> Held:
    """By the worker of that rank of the first world."""
    found = job.cut(FIRST.ranks()[rank].device).held(0)
    assert found is not None
    return found


@pytest.mark.parametrize("number", [0, 3])
def test_a_message_that_is_not_what_was_sent_leaves_the_old_state_from_which_the_change_succeeds(number: int) -> None:
    job = after_two_steps()
    before, count = [kept(job, rank) for rank in range(3)], itertools.count()

    def flip(lane: int, sent: Tensor) -> Tensor:
        if sent.dtype == torch.uint8 and next(count) == number:
            sent[-1] ^= 1
        return sent

    (said,) = refusals(job, change=flip)
    assert re.fullmatch(
        r"ranks \[\d\] received messages that do not match their manifests: the change is dropped", said
    )
    assert [kept(job, rank) for rank in range(3)] == before
    finish(next_world(job, SECOND))
    assert job.losses == pytest.approx(baseline(FIRST, steps=SHORT), abs=1e-12)


def test_a_message_of_another_generation_does_not_count() -> None:
    job = after_two_steps()

    def older(lane: int, sent: Tensor) -> Tensor:
        if sent.dtype == torch.uint8:
            sent[:8].view(torch.int64).sub_(1)
        return sent

    (said,) = refusals(job, change=older)
    assert "do not match their manifests" in said


@pytest.mark.parametrize("harm", ["another byte", "another generation"])
def test_weights_that_are_not_what_was_sent_are_used_by_no_rank(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new state stands by then: the next change gathers its weights."""
    job, moves_are_over, plain = after_two_steps(), threading.Event(), TakeOver.spread

    def spread(*given: Any) -> bool:
        moves_are_over.set()  # all ranks have voted on them
        return plain(*given)

    def change(lane: int, sent: Tensor) -> Tensor:
        if sent.dtype == torch.uint8 and moves_are_over.is_set():
            if harm == "another byte":
                sent[-1] ^= 1
            else:
                sent[:8].view(torch.int64).sub_(1)
        return sent

    monkeypatch.setattr(TakeOver, "spread", spread)
    source, generation = job.source(SECOND), job.form(SECOND)
    errors = [o.error for o in run_cut(3, go_on, job, generation, source, SHORT, change=change)]
    said = [str(error) for error in errors if isinstance(error, Retryable)]
    assert said and all(re.fullmatch(r"rank \d's message of round 0 says .*", each) for each in said)
    finish(next_world(job, FIRST))
    assert job.losses == pytest.approx(baseline(FIRST, steps=SHORT), abs=1e-12)


def test_rounds_count_all_kinds_of_state_and_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a round of weights or of state takes more memory than it may."""
    job, found, plain = after_two_steps(), set[int](), takeover.rounds

    def rounds(moves: Any, bytes_of: Any) -> Any:
        found.update(bytes_of.values())
        return plain(moves, bytes_of)

    monkeypatch.setattr(takeover, "rounds", rounds)
    finish(next_world(job, SECOND))
    assert found == {3 * 8, 8}


def lie(job: Job, what: str) -> None:
    """Of the worker that was rank 1."""
    cut = job.cut(FIRST.ranks()[1].device)
    assert cut.copy is not None
    if what == "step":
        cut.step -= 1
    elif what == "generation":
        cut.generation += 7
    elif what == "shard":
        cut.rank = 2
    elif what == "ward":
        cut.ward = 1
    elif what == "content":
        cut.own.part("exp_avg", 5, 6).add_(1)
    else:
        cut.copy.values("exp_avg_sq")[-1].view(-1)[-1] += 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("step", r"rank 1 is to hold the shard of rank 1 of generation 0 as before step 2, it has step 1"),
        ("generation", r"rank 1 is to hold the shard of rank 1 of generation 0, it holds nothing"),
        ("shard", r"rank 1 is to hold the shard of rank 1 of generation 0, it holds rank 2 of generation 0"),
        ("ward", r"rank 1 is to hold the copy of rank \d of generation 0, it holds rank 1 of generation 0"),
        ("content", r"ranks 1 and \d hold different contents of the shard of rank 1"),
        ("copy", r"ranks \d and \d hold different contents of the shard of rank \d"),
    ],
)
def test_a_rank_that_does_not_hold_what_it_said_is_refused_by_name(what: str, says: str) -> None:
    job = after_two_steps()
    source, generation = job.source(SECOND), job.form(SECOND)
    lie(job, what)
    outcomes = run_cut(3, go_on, job, generation, source, SHORT)
    assert all(isinstance(o.error, Retryable) and re.fullmatch(says, str(o.error)) for o in outcomes)


def takes_over(world: Any, job: Job, generation: int, source: LiveSource, nodes: Sequence[Sequence[str]]) -> None:
    job.engine(world, generation).take_over(source, nodes[world.rank])


def test_ranks_that_list_other_moves_are_refused_by_name() -> None:
    """As where they know other nodes of trainers: a rank would wait for what no other one sends."""
    job = after_two_steps()
    source, generation, nodes = (
        job.source(SECOND),
        job.form(SECOND),
        [("a", "b", "a"), ("a", "a", "b"), ("a", "a", "b")],
    )
    outcomes = run_cut(3, takes_over, job, generation, source, nodes)
    assert {str(o.error) for o in outcomes} == {"ranks [1, 2] made another transfer list than rank 0"}


def test_a_step_that_no_rank_has_agreed_on_cannot_be_finished() -> None:
    job = after_two_steps()
    source, generation = replace(job.source(SECOND), step=3), job.form(SECOND)
    (said,) = {str(o.error) for o in run_cut(3, go_on, job, generation, source, SHORT)}
    assert said == "rank 0 is to hold the shard of rank 0 of generation 0 as before step 3, it has step 2"


def test_a_shard_that_no_rank_holds_is_named() -> None:
    job = after_two_steps()
    source, generation = job.source(SECOND), job.form(SECOND)
    holders = tuple(h for h in source.holders if h.former != 2)
    outcomes = run_cut(3, go_on, job, generation, replace(source, holders=holders), SHORT)
    assert {str(o.error) for o in outcomes} == {"no rank holds the shard of rank 2 of generation 0"}
