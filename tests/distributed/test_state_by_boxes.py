"""State named by boxes: the same initial values, and the same checkpoint, in any layout."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import Box, full_box, intersect, window, zero_shard
from coxswain.errors import Refused
from coxswain.holdings import all_holdings
from coxswain.layout import Layout
from coxswain.shards import shards
from coxswain.wire import Hull, Shard
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load, snapshots
from coxswain_train.checkpoint.listings import hulls_of, meet, with_boxes, with_listing
from coxswain_train.live.state import LiveState
from coxswain_train.model.init_weights import init_box
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.parallel.state import KINDS, State
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads
from tests.layouts import LAYERS, SPECS, random_layout

STREAM = Stream(lengths=(5, 12, 23), vocabulary=training.VOCABULARY)
SHAPE = (37, 24)
SHAPES = {spec.name: spec.shape for spec in SPECS}
NAME = "model.layers.1.self_attn.o_proj.weight"
Flat = dict[tuple[str, Box], np.ndarray]


def save_after_two_steps(world: ProcessGroups, uri: str) -> tuple[tuple[Shard, ...], Flat]:
    engine = training.engine_of(world, torch.float32)
    engine.initialise(training.SEED)
    for step in range(2):
        plan = random_plan(STREAM.lengths, world.ranks, step)
        engine.step(training.work_of(STREAM, step, plan, world.rank), time.perf_counter())
    saver, saved = save_load.Saver(open_store(uri, create=True)), []
    saver.begin(engine.boxes(), lambda shards, seconds: saved.append(shards))
    saver.wait()
    return saved[0], _flat(engine.boxes())


def load_and_save(
    world: ProcessGroups, uri: str, saved: list[Shard]
) -> tuple[tuple[Shard, ...], Flat, dict[str, np.ndarray]]:
    engine, store = training.engine_of(world, torch.float32), open_store(uri)
    save_load.load(store, saved, engine.make_room())
    engine.optimizer.all_gather()
    again = tuple(save_load.write_shards(store, snapshots.snapshot(engine.boxes())))
    return again, _flat(engine.boxes()), training.weights_of(engine)


def _flat(state: save_load.State) -> Flat:
    return {(kind, box): x.numpy().copy() for kind, boxes in state.items() for box, x in boxes.items()}


def whole_state(parts: list[Flat]) -> dict[tuple[str, str], np.ndarray]:
    """The logical tensors put together from all ranks' boxes."""
    rows: dict[tuple[str, str], list[tuple[int, np.ndarray]]] = {}
    for part in parts:
        for (kind, box), values in part.items():
            rows.setdefault((kind, box.name), []).append((box.offset[0], values))
    return {key: np.concatenate([v for _, v in sorted(r, key=lambda x: x[0])]) for key, r in rows.items()}


def same(a: dict[tuple[str, str], np.ndarray], b: dict[tuple[str, str], np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_a_checkpoint_travels_from_one_replica_to_three_to_four_and_back_bit_by_bit(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    saved = run_threads(1, save_after_two_steps, uri)
    before = whole_state([state for _, state in saved])
    shards = [s for part, _ in saved for s in part]
    assert any(np.abs(values).max() > 0 for (kind, _), values in before.items() if kind == "exp_avg_sq")
    for replicas in (3, 4, 1):
        loaded = run_threads(replicas, load_and_save, uri, shards)
        assert same(whole_state([state for _, state, _ in loaded]), before)
        parameters = {name: values for (kind, name), values in before.items() if kind == "parameter"}
        assert all(np.array_equal(weights[n], p) for _, _, weights in loaded for n, p in parameters.items())
        shards = [s for part, _, _ in loaded for s in part]


def values_of(kind: str, box: Box) -> torch.Tensor:
    """Each element's number in the whole parameter, with the kind in the fraction."""
    whole = full_box(box.name, SHAPES[box.name])
    numbers = torch.arange(whole.elements, dtype=torch.float32).view(whole.shape)
    return numbers[window(whole, box)] + KINDS.index(kind) / 4


def states_of(layout: Layout) -> list[State]:
    """Empty ones of all ranks."""
    owners = shards(all_holdings(SPECS, layout, LAYERS))
    states = [State() for _ in range(owners.owners)]
    for rank, state in enumerate(states):
        state.hold(owners.boxes(rank), torch.float32, torch.device("cpu"))
    return states


@pytest.mark.parametrize("seed", range(6))
def test_a_checkpoint_of_any_holdings_is_read_into_any_others_box_by_box(tmp_path: Path, seed: int) -> None:
    """Stages, tensor groups and unequal replicas, on to another layout and from there to a third, half of them by sidecars."""
    rng, store = random.Random(seed), open_store(f"file://{tmp_path}", create=True)
    states = states_of(random_layout(rng, rng.randint(1, 3)))
    for kind, boxes in ((k, b) for state in states for k, b in state.boxes().items()):
        for box, values in boxes.items():
            values.copy_(values_of(kind, box))
    for _ in range(2):
        saved = [s for state in states for s in save_load.write_shards(store, snapshots.snapshot(state.boxes()))]
        saved = [with_listing(store, s) if seed % 2 else s for s in saved]
        states = states_of(random_layout(rng, rng.randint(1, 3)))
        for state in states:
            save_load.load(store, saved, state.boxes())
            for kind, boxes in state.boxes().items():
                assert all(torch.equal(values, values_of(kind, box)) for box, values in boxes.items())


def begin_again(world: ProcessGroups, uri: str) -> tuple[dict[str, np.ndarray], Flat, Flat]:
    """Trains two steps, then makes an engine of the next world on the same state, from the seed and from a checkpoint."""
    live = LiveState()
    engine = training.engine_of(world, torch.float32, live=live)
    engine.initialise(training.SEED)
    for step in range(2):
        engine.step(training.work_of(STREAM, step, random_plan(STREAM.lengths, 1, step), 0), time.perf_counter())
    trained, addresses = _flat(engine.boxes()), [values.data_ptr() for values in live.own.values("parameter")]
    saved = list(save_load.write_shards(open_store(uri, create=True), snapshots.snapshot(engine.boxes())))
    engine = training.engine_of(world, torch.float32, live=live)
    engine.initialise(training.SEED)
    fresh, weights = _flat(engine.boxes()), training.weights_of(engine)
    assert all(not values.any() for (kind, _), values in fresh.items() if kind != "parameter")
    save_load.load(open_store(uri), saved, engine.make_room())
    assert [values.data_ptr() for values in live.own.values("parameter")] == addresses
    return weights, trained, _flat(engine.boxes())


def test_a_worker_that_goes_on_in_another_world_has_the_state_of_the_seed_or_of_the_checkpoint(tmp_path: Path) -> None:
    ((weights, trained, loaded),) = run_threads(1, begin_again, f"file://{tmp_path}")
    (fresh,) = run_threads(1, training.initial_weights, training.MODEL)
    assert all(np.array_equal(weights[name], fresh[name]) for name in fresh)
    assert trained.keys() == loaded.keys()
    assert all(np.array_equal(trained[key], loaded[key]) for key in trained)


@pytest.fixture
def one_shard(tmp_path: Path) -> tuple[str, Shard]:
    values = torch.arange(12.0).view(3, 4)
    store = open_store(f"file://{tmp_path}", create=True)
    (found,) = save_load.write_shards(store, [("parameter", full_box("w", (3, 4)), values)])
    return f"file://{tmp_path}", found


def load_w(uri: str, shards: list[Shard]) -> torch.Tensor:
    room = torch.zeros(2, 4)
    save_load.load(open_store(uri), shards, {"parameter": {Box("w", (1, 0), (2, 4)): room}})
    return room


def test_a_box_is_cut_out_of_a_shard(one_shard: tuple[str, Shard]) -> None:
    assert load_w(one_shard[0], [one_shard[1]]).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_missing_shard_is_refused_by_name(one_shard: tuple[str, Shard]) -> None:
    open_store(one_shard[0]).delete(one_shard[1].key)
    with pytest.raises(Refused, match=f"{one_shard[1].key} is missing") as refused:
        load_w(one_shard[0], [one_shard[1]])
    assert refused.value.reason == "TornCheckpoint"


def test_a_shard_with_one_changed_byte_is_refused_by_name(one_shard: tuple[str, Shard]) -> None:
    store = open_store(one_shard[0])
    data = bytearray(store.get(one_shard[1].key))
    data[-1] ^= 1
    store.put(one_shard[1].key, bytes(data))
    with pytest.raises(Refused, match=f"{one_shard[1].key} is damaged: its content is not what its name says"):
        load_w(one_shard[0], [one_shard[1]])


def test_a_checkpoint_without_all_of_a_needed_box_is_refused(one_shard: tuple[str, Shard]) -> None:
    """The first such box is named."""
    w, v, u = (full_box(name, (3, 4)) for name in "wvu")
    rooms = {box: torch.zeros(3, 4) for box in (w, v, u)}
    says = r"no shard holds all of parameter Box\(name='v'.* \(2 boxes are incomplete\)"
    with pytest.raises(Refused, match=says) as refused:
        save_load.load(open_store(one_shard[0]), [one_shard[1]], {"parameter": rooms})
    assert refused.value.reason == "TornCheckpoint"


def test_a_damaged_shard_is_replaced_when_the_same_content_is_saved_again(one_shard: tuple[str, Shard]) -> None:
    store = open_store(one_shard[0])
    store.put(one_shard[1].key, b"torn")
    list(save_load.write_shards(store, [("parameter", full_box("w", (3, 4)), torch.arange(12.0).view(3, 4))]))
    assert load_w(one_shard[0], [one_shard[1]]).sum() == sum(range(4, 12))


def test_the_same_state_saved_in_another_world_is_other_objects(tmp_path: Path) -> None:
    """A coordinator that was stopped amid its deletions may go on with them: none is of an object of a later world."""
    store, names = open_store(f"file://{tmp_path}", create=True), set[str]()
    state = {"parameter": {full_box("w", (3, 4)): torch.arange(12.0).view(3, 4)}}
    for generation in (1, 2, 2):
        saver, saved = save_load.Saver(store), list[Shard]()
        saver.begin(state, lambda shards, _, saved=saved: saved.extend(shards), generation, sidecars=True)
        saver.wait()
        rooms = {"parameter": {full_box("w", (3, 4)): torch.zeros(3, 4)}}
        save_load.load(store, saved, rooms)
        assert float(next(iter(rooms["parameter"].values())).sum()) == sum(range(12))
        names |= {name for shard in saved for name in shard.objects}
    assert names == {found.path for found in store.list("shards/")}
    assert len(names) == 4


def test_a_snapshot_shares_no_memory_with_the_state() -> None:
    room = torch.ones(3)
    ((_, _, copy),) = snapshots.snapshot({"parameter": {full_box("w", (3,)): room}})
    room.zero_()
    assert copy.tolist() == [1, 1, 1]


class HeldStore:
    """A store that takes no object before `go` is set."""

    def __init__(self, store: Store) -> None:
        self._store, self.go, self.began = store, threading.Event(), threading.Event()

    def create(self, key: str, data: bytes) -> bool:
        self.began.set()
        assert self.go.wait(10)
        return self._store.create(key, data)


def test_a_checkpoint_holds_the_state_as_it_was_when_the_save_began(tmp_path: Path) -> None:
    store, room, box = open_store(f"file://{tmp_path}", create=True), torch.arange(6.0), full_box("w", (6,))
    held, saved = HeldStore(store), []
    saver = save_load.Saver(cast("Store", held))
    saver.begin({"parameter": {box: room}}, lambda shards, seconds: saved.extend(shards))
    room.zero_()  # the next step
    saver.check()  # does not wait
    assert held.began.wait(10)
    room.fill_(7.0)
    assert not saved
    held.go.set()
    saver.wait()
    save_load.load(store, saved, {"parameter": {box: room}})
    assert room.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_save_and_a_load_say_after_each_shard_that_they_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that says nothing for long counts as hung."""
    monkeypatch.setattr(save_load, "write_shards", partial(save_load.write_shards, shard_bytes=8))
    store, saved, said = open_store(f"file://{tmp_path}", create=True), list[Shard](), list[int]()
    state = {"parameter": {full_box(name, (2,)): torch.full((2,), float(n)) for n, name in enumerate("abc")}}
    saver = save_load.Saver(store)
    saver.begin(
        state, lambda shards, _: saved.extend(shards), progress=lambda: said.append(len(list(store.list("shards/"))))
    )
    saver.wait()
    assert said == [1, 2, 3]
    save_load.load(store, saved, state, lambda: said.append(0))
    assert said == [1, 2, 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("shard_bytes", "sizes"), [(1, [1, 1, 1, 1, 1]), (16, [2, 2, 1]), (17, [3, 2]), (24, [3, 2]), (40, [5]), (99, [5])]
)
def test_a_state_larger_than_a_shard_is_saved_in_several_and_read_whole(
    tmp_path: Path, shard_bytes: int, sizes: list[int]
) -> None:
    """Five tensors of eight bytes. A shard is closed once it holds `shard_bytes`, and none is empty."""
    store = open_store(f"file://{tmp_path}", create=True)
    boxes = [full_box(name, (2,)) for name in "abcde"]
    entries = [("exp_avg", box, torch.full((2,), float(i))) for i, box in enumerate(boxes)]
    shards = list(save_load.write_shards(store, entries, shard_bytes))
    assert [len(shard.boxes) for shard in shards] == sizes
    rooms = {box: torch.full((2,), -1.0) for box in boxes}
    save_load.load(store, shards, {"exp_avg": rooms})
    assert [room.tolist() for room in rooms.values()] == [[i, i] for i in range(5)]
    assert [len(store.get(shard.key)) for shard in shards] == [shard.bytes for shard in shards]


def test_a_shard_that_holds_nothing_for_this_rank_is_not_read(tmp_path: Path) -> None:
    store, boxes = open_store(f"file://{tmp_path}", create=True), [full_box(name, (2,)) for name in "ab"]
    entries = [("parameter", boxes[0], torch.ones(2)), ("parameter", boxes[1], torch.zeros(2))]
    shards = list(save_load.write_shards(store, entries, 1))
    store.delete(shards[1].key)
    room = torch.zeros(2)
    save_load.load(store, shards, {"parameter": {boxes[0]: room}})
    assert room.tolist() == [1, 1]


def test_values_of_one_kind_do_not_fill_another(tmp_path: Path) -> None:
    store, box = open_store(f"file://{tmp_path}", create=True), full_box("w", (2,))
    entries = [(kind, box, torch.full((2,), float(i))) for i, kind in enumerate(KINDS)]
    shards, rooms = list(save_load.write_shards(store, entries)), {kind: {box: torch.zeros(2)} for kind in KINDS}
    save_load.load(store, shards, rooms)
    assert [rooms[kind][box].tolist() for kind in KINDS] == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(Refused, match="no shard holds all of exp_avg "):
        save_load.load(store, [replace(s, kinds=("parameter", "other", "exp_avg_sq")) for s in shards], rooms)


def test_a_manifest_that_is_missing_or_no_manifest_is_refused_by_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", create=True)
    store.put("manifests/torn.json", b'{"version": 1')
    for key, says in (("manifests/none.json", "is missing"), ("manifests/torn.json", "is not a manifest")):
        with pytest.raises(Refused, match=f"{key} {says}.*delete this checkpoint's manifest") as refused:
            save_load.read_manifest(store, key)
        assert refused.value.reason == "TornCheckpoint"


@pytest.mark.parametrize("call", ["check", "wait", "begin"])
def test_what_a_save_runs_into_is_raised_once_by_the_next_call(tmp_path: Path, call: str) -> None:
    saver, state = (
        save_load.Saver(open_store(f"file://{tmp_path}", create=True)),
        {"p": {full_box("w", (1,)): torch.ones(1)}},
    )
    ended = threading.Event()

    def refuse(shards: tuple[Shard, ...], seconds: float) -> None:
        ended.set()
        raise Refused("Example", "the report was refused")

    saver.begin(state, refuse)
    assert ended.wait(10)
    with pytest.raises(Refused, match="the report was refused"):
        while True:  # the future ends a moment after the call
            {"check": saver.check, "wait": saver.wait, "begin": lambda: saver.begin(state, refuse)}[call]()
    saver.wait()


@pytest.mark.parametrize("owners", [2, 5, 40])
def test_initial_values_do_not_depend_on_the_boxes(owners: int) -> None:
    full = init_box(5, full_box(NAME, SHAPE), SHAPE, training.MODEL)
    for owner in range(owners):
        if box := zero_shard(full_box(NAME, SHAPE), owners, owner):
            part = init_box(5, box, SHAPE, training.MODEL)
            assert np.array_equal(part, full[window(full_box(NAME, SHAPE), box)])


def test_a_box_of_columns_has_the_same_initial_values_too() -> None:
    box, all_ = Box(NAME, (3, 7), (9, 11)), full_box(NAME, SHAPE)
    full = init_box(5, all_, SHAPE, training.MODEL)
    assert np.array_equal(init_box(5, box, SHAPE, training.MODEL), full[window(all_, box)])


def test_kinds_of_state_are_those_of_the_manifest() -> None:
    assert KINDS == ("parameter", "exp_avg", "exp_avg_sq")


# --- sidecars --------------------------------------------------------------------------------------------------------


def rows_between(name: str, rows: int, owner: int, owners: int) -> Box:
    """The rows of a matrix that one of so many owners has."""
    first, stop = rows * owner // owners, rows * (owner + 1) // owners
    return Box(name, (first, 0), (stop - first, 2))


def owned_rows(owner: int, owners: int) -> dict[Box, torch.Tensor]:
    found = (rows_between(name, rows, owner, owners) for name, (rows, _) in MATRICES.items())
    return {box: torch.full(box.shape, float(box.offset[0])) for box in found}


MATRICES = {f"model.layers.{n}.self_attn.q_proj.weight": (1000, 2) for n in range(20)}


class CountingStore:
    """Notes what is read."""

    def __init__(self, store: Store) -> None:
        self.store, self.read = store, list[str]()

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return self.store.get(key)


def saved_rows(store: Store, owners: int) -> list[Shard]:
    states = ({"parameter": owned_rows(owner, owners)} for owner in range(owners))
    return [with_listing(store, s) for st in states for s in save_load.write_shards(store, snapshots.snapshot(st))]


@pytest.mark.parametrize(("ranks", "most"), [(32, 3), (24, 4), (64, 2)])
def test_a_rank_opens_the_sidecars_and_shards_of_the_rows_that_it_needs_and_no_others(
    tmp_path: Path, ranks: int, most: int
) -> None:
    store = open_store(f"file://{tmp_path}", create=True)
    saved = saved_rows(store, 32)
    for rank in range(ranks):
        counting, wanted = CountingStore(store), owned_rows(rank, ranks)
        rooms = {box: torch.full(box.shape, -1.0) for box in wanted}
        save_load.load(cast("Store", counting), saved, {"parameter": rooms})
        assert all(float(room.min()) >= 0 for room in rooms.values())
        assert 1 <= sum(".boxes." in key for key in counting.read) <= most
        assert sum(key.endswith(".safetensors") for key in counting.read) <= most


def test_a_manifest_says_of_each_shard_with_a_sidecar_only_where_that_is_and_what_it_lies_in(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", create=True)
    inline = next(save_load.write_shards(store, snapshots.snapshot({"parameter": owned_rows(3, 32)})))
    shard = with_listing(store, inline)
    assert (shard.boxes, shard.kinds, shard.key) == ((), (), inline.key)
    assert len(msgspec.json.encode(shard)) < 400 < len(msgspec.json.encode(inline))
    assert shard.objects == {o.path: o.size for o in store.list("shards/")}
    assert list(with_boxes(store, [shard])) == [inline] == list(with_boxes(store, [inline], ()))


@pytest.mark.parametrize("sidecars", [False, True])
def test_numbered_weights_of_unlike_dimensions_are_saved_and_loaded(tmp_path: Path, sidecars: bool) -> None:
    """A model of one's own may have nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6)) as its head."""
    boxes = [full_box("head.0.weight", (4,)), full_box("head.1.weight", (6, 4))]
    state = {"parameter": {box: torch.rand(box.shape, generator=torch.manual_seed(1)) for box in boxes}}
    store = open_store(f"file://{tmp_path}", create=True)
    saved = list(save_load.write_shards(store, snapshots.snapshot(state)))
    saved = [with_listing(store, s) if sidecars else s for s in saved]
    rooms = {"parameter": {box: torch.zeros(box.shape) for box in boxes}}
    save_load.load(store, saved, rooms)
    assert all(torch.equal(values, state["parameter"][box]) for box, values in rooms["parameter"].items())


def test_a_hull_is_named_by_its_first_number_as_in_the_manifests_that_are_there() -> None:
    """Another name would leave their shards unread."""
    boxes = [Box(f"layers.{n}.experts.{n + 4}.w", (n, 0), (2, 8)) for n in (1, 3, 1)] + [Box("norm", (0,), (8,))]
    assert hulls_of(boxes) == (
        Hull("layers.*.experts.5.w", 1, 1, (1, 0), (3, 8)),
        Hull("layers.*.experts.7.w", 3, 3, (3, 0), (5, 8)),
        Hull("norm", 0, 0, (0,), (8,)),
    )


def test_boxes_that_overlap_are_in_hulls_that_overlap() -> None:
    rng = random.Random(4)
    for _ in range(500):
        one, other = ([_box_of(rng) for _ in range(rng.randint(1, 4))] for _ in range(2))
        assert meet(hulls_of(one), hulls_of(other)) or not any(intersect(a, b) for a in one for b in other)
    for turn in (1, -1):
        assert not meet(*(hulls_of([Box(f"layers.{n}.w", (0,), (4,))]) for n in (1, 2)[::turn]))
        assert not meet(*(hulls_of([Box("layers.1.w", (n, 0), (4, 4))]) for n in (0, 4)[::turn]))


def _box_of(rng: random.Random) -> Box:
    name = rng.choice(("head", f"layers.{rng.randint(0, 3)}.q", f"layers.{rng.randint(9, 12)}.o", "layers.4.q"))
    if name == "layers.4.q":  # of another number of dimensions than the other layers'
        return Box(name, (rng.randint(0, 9),), (rng.randint(1, 5),))
    return Box(name, (rng.randint(0, 9), rng.randint(0, 9)), (rng.randint(1, 5), rng.randint(1, 5)))


@pytest.mark.parametrize(("damage", "says"), [(None, "is missing"), (b"other", "is damaged")])
def test_a_sidecar_that_is_missing_or_damaged_tears_the_checkpoint(
    tmp_path: Path, damage: bytes | None, says: str
) -> None:
    store = open_store(f"file://{tmp_path}", create=True)
    saved = saved_rows(store, 2)
    assert saved[0].listing
    store.delete(saved[0].listing.key)
    if damage:
        store.put(saved[0].listing.key, damage)
    with pytest.raises(Refused, match=rf"boxes\.json\.zst {says}") as caught:
        save_load.load(store, saved, {"parameter": owned_rows(0, 2)})
    assert caught.value.reason == "TornCheckpoint"
    assert saved_rows(store, 2) == saved  # the same content replaces it
    save_load.load(store, saved, {"parameter": owned_rows(0, 2)})
