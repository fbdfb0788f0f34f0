"""Layouts, boxes and digests: the values everything else stands on."""

import ast
import re
import sys
from collections.abc import Iterable
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain import digests
from coxswain.boxes import Box, full_box, intersect, match, window, zero_shard
from coxswain.config import (
    BatchConfig,
    CheckpointConfig,
    EvaluationConfig,
    JobConfig,
    MixConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    ReplicaShape,
    RopeScaling,
    SourceConfig,
    StageShape,
    TokenizerConfig,
)
from coxswain.exits import Exit
from coxswain.layout import (
    Device,
    Layout,
    Replica,
    Stage,
    loss_ranks,
    shaped_layout,
    token_ranks,
    uniform_layout,
)
from coxswain.membership.values import Sequence
from coxswain.names import EVENT_REASONS
from coxswain.plan.values import Placement
from coxswain.presets import PRESETS

DEVICES = [Device(t, d) for t in range(3) for d in range(2)]


def test_ranks_count_through_replicas_then_stages_then_tensor_positions():
    seats = uniform_layout(DEVICES, layers=5, tensor=1, pipeline=2).ranks()
    assert [(s.rank, s.replica, s.stage) for s in seats] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
        (4, 2, 0),
        (5, 2, 1),
    ]
    assert [s.device for s in seats] == DEVICES


def test_stages_share_the_layers_without_gap_or_overlap():
    stages = uniform_layout(DEVICES, layers=5, pipeline=3).replicas[0].stages
    assert [(s.start, s.stop) for s in stages] == [(0, 1), (1, 3), (3, 5)]


def test_devices_that_fill_no_replica_stand_by():
    layout = uniform_layout(DEVICES, layers=4, tensor=4)
    assert len(layout.replicas) == 1
    assert layout.standby == tuple(DEVICES[4:])


def test_exit_codes_are_those_that_pods_and_users_rely_on():
    assert [(code.name, code.value) for code in Exit] == [
        ("DONE", 0),
        ("RETRYABLE", 1),
        ("USER_FAULT", 2),
        ("STOPPED", 3),
    ]


@pytest.mark.parametrize(("makespan", "bound", "times"), [(3.0, 2.0, 1.5), (0.0, 0.0, 1.0)])
def test_a_placement_takes_so_many_times_its_bound_and_an_empty_one_just_its_bound(makespan, bound, times):
    assert Placement("naive", 1, 1, (), (), makespan, bound, 0.0, 0.0).makespan_over_bound == times


def test_a_summary_counts_replicas_of_a_kind_by_their_tensor_degrees_and_their_stages():
    one, two = uniform_layout(DEVICES, 4).replicas[:2]
    wide = Replica((Stage(tuple(DEVICES[2:4]), 0, 2), Stage((DEVICES[4],), 2, 4)))
    assert Layout((one, two, wide)).summary() == "2 x tp1pp1 + 1 x tp2/1pp2"


SHAPES = (ReplicaShape((StageShape(1, 2), StageShape(3))), ReplicaShape((StageShape(4),), count=2))


def test_a_shaped_layout_keeps_every_tensor_group_on_one_trainer_and_leaves_the_rest_on_standby():
    layout = shaped_layout([Device(t, d) for t in range(2) for d in range(3)], SHAPES)
    stages = [[(s.devices, s.start, s.stop) for s in replica.stages] for replica in layout.replicas]
    assert stages == [
        [((Device(0, 0), Device(0, 1)), 0, 1), ((Device(0, 2),), 1, 4)], [((Device(1, 0),), 0, 4)], [((Device(1, 1),), 0, 4)],
    ]  # fmt: skip
    assert layout.standby == (Device(1, 2),)
    assert layout.summary() == "1 x tp2/1pp2 + 2 x tp1pp1"


@pytest.mark.parametrize("devices", [[Device(0, d) for d in range(4)], [Device(t, 0) for t in range(9)]])
def test_a_shaped_layout_without_room_for_all_its_replicas_has_none(devices):
    assert shaped_layout(devices, SHAPES) == Layout(replicas=(), standby=tuple(devices))


def test_a_shaped_layout_looks_at_each_trainer_once_for_each_degree():
    """Tensor groups of 3 leave two of eight devices, which groups of 1 take: a thousand trainers, two thousand stages each."""
    looks = count()
    shapes = (ReplicaShape((StageShape(4, 3),), 2000), ReplicaShape((StageShape(4),), 2000))
    devices = [Device(t, d) for t in range(1000) for d in range(8)]
    sys.setprofile(lambda frame, event, called: next(looks) if called is len else None)
    try:
        layout = shaped_layout(devices, shapes)
    finally:
        sys.setprofile(None)
    assert len(layout.replicas) == 4000
    assert layout.standby == ()
    assert next(looks) < 10 * 4000, "each stage asks how many devices are left a few times, not of hundreds of trainers"


def test_a_ring_spans_only_replicas_of_equal_stages():
    layout = shaped_layout([Device(0, d) for d in range(5)], SHAPES)
    assert layout.largest_ring() == 2
    assert uniform_layout(DEVICES, 4).largest_ring() == len(DEVICES)
    assert Layout(replicas=()).largest_ring() == 0


def test_one_rank_a_replica_counts_its_losses_and_one_its_tokens():
    seats = shaped_layout([Device(0, d) for d in range(5)], SHAPES).ranks()
    assert [(s.replica, s.stage, s.tensor) for s in seats] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 0, 0)]
    assert loss_ranks(seats) == {2, 3, 4}
    assert token_ranks(seats) == {0, 3, 4}


def test_a_layout_names_itself_by_content():
    assert uniform_layout(DEVICES, 4).digest() == uniform_layout(list(DEVICES), 4).digest()
    assert uniform_layout(DEVICES, 4).digest() != uniform_layout(DEVICES, 4, pipeline=2).digest()


@given(rows=st.integers(1, 40), columns=st.integers(1, 3), owners=st.integers(1, 9))
def test_zero_shards_cover_a_box_exactly_once(rows, columns, owners):
    box = Box("w", (7, 0), (rows, columns))
    shards = [s for o in range(owners) if (s := zero_shard(box, owners, o))]
    assert sum(s.elements for s in shards) == box.elements
    assert all(intersect(a, b) is None for a in shards for b in shards if a != b)
    assert all(intersect(s, box) == s for s in shards)


@given(rows=st.integers(1, 30), old=st.integers(1, 7), new=st.integers(1, 7))
def test_any_sharding_is_filled_from_any_other(rows, old, new):
    full = np.arange(rows * 2).reshape(rows, 2)
    box = full_box("w", (rows, 2))
    have = {s: full[window(box, s)] for o in range(old) if (s := zero_shard(box, old, o))}
    need = [s for o in range(new) if (s := zero_shard(box, new, o))]
    pieces, missing = match(have, need)
    assert not missing
    for target in need:
        out = np.full(target.shape, -1)
        for p in (p for p in pieces if p.need == target):
            out[window(target, p.part)] = have[p.have][window(p.have, p.part)]
        assert (out == full[window(box, target)]).all()


def test_a_box_that_is_not_covered_whole_is_reported():
    _, missing = match([Box("w", (0,), (3,))], [Box("w", (1,), (3,)), Box("v", (0,), (1,))])
    assert missing == [Box("w", (1,), (3,)), Box("v", (0,), (1,))]


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=60), st.data())
def test_the_delivered_digest_is_the_same_for_any_slicing(tokens, data):
    ids, positions = np.array(tokens), np.arange(len(tokens))
    cut = data.draw(st.integers(0, len(tokens)))
    parts = digests.add(
        digests.delivered(3, positions[cut:], ids[cut:]), digests.delivered(3, positions[:cut], ids[:cut])
    )
    assert parts == digests.delivered(3, positions, ids)


@pytest.mark.parametrize(
    ("sequence", "positions", "tokens"), [(1, [0, 1], [5, 6]), (0, [1, 0], [5, 6]), (0, [0, 1], [5, 7])]
)
def test_the_delivered_digest_depends_on_sequence_position_and_token(sequence, positions, tokens):
    assert digests.delivered(sequence, np.array(positions), np.array(tokens)) != digests.delivered(
        0, np.array([0, 1]), np.array([5, 6])
    )


def test_no_token_counts_in_the_delivered_digest_as_another_one_at_another_place_or_of_another_sequence():
    at = [(s, p, t) for s in range(12) for p in range(8) for t in range(32)]
    found = {digests.delivered(s, np.array([p]), np.array([t])) for s, p, t in at}
    assert len(found) == len(at)


def test_the_stream_digest_has_a_golden_value():
    sequence = Sequence("code", 0, 12, 0, 3, 9)
    token_digest = digests.tokens_digest(np.array([1, 2, 70_000]))
    assert digests.chain(digests.STREAM_SEED, 0, [sequence], [token_digest]) == (
        "26d0bc873f226f6038fc7a0092d0e90e3590787ac75032f0ea74c5984c62e7b4"
    )


def test_a_pieces_last_label_is_the_next_token_and_a_samples_end_has_none():
    assert Sequence("code", 0, 0, 0, 4, 9).labels == 4
    assert Sequence("code", 0, 0, 4, 9, 9).labels == 4


def config(**source):
    """A job over one source."""
    base = {
        "name": "code",
        "source": "code",
        "uri": "file:///a",
        "format": "Text",
        "include": "**",
        "text_field": "text",
    }
    one = SourceConfig(**(base | {"tokenizer": TokenizerConfig(kind="bytes"), "weight": 1} | source))
    return JobConfig(
        name="j", namespace="n", uid="u", seed=1, model=ModelConfig(layers=1, hidden=8, heads=1, kv_heads=1, feed_forward=8),
        mix=MixConfig(name="m", seed=1, sources=(one,)), parallelism=ParallelConfig(),
        batch=BatchConfig(tokens_per_step=8, max_sequence_tokens=4), optimizer=OptimizerConfig(learning_rate=0.1),
        trainers=1, devices_per_trainer=1, min_trainers=1, loaders=1, checkpoint=CheckpointConfig(uri="file:///c"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"uri": "s3://b/a"}, {"max_rejected": 9}, {"weight": 5}, {"max_passes": 2}, {"source": "x"}]
)
def test_moved_data_and_raised_limits_are_the_same_stream(change):
    assert config(**change).stream_hash() == config().stream_hash()


@pytest.mark.parametrize("change", [{"name": "docs"}, {"text_field": "body"}, {"format": "Jsonl"}])
def test_another_reading_of_the_data_is_another_stream(change):
    assert config(**change).stream_hash() != config().stream_hash()


def test_held_out_tokens_make_another_stream_and_how_often_they_are_evaluated_does_not():
    without, some = config(), [replace(config(), evaluation=EvaluationConfig(**e)) for e in EVALUATIONS]
    assert [job.stream_hash() == without.stream_hash() for job in some] == [False, False, False]
    assert [job.stream_hash() == some[0].stream_hash() for job in some] == [True, True, False]


EVALUATIONS = ({"every_steps": 5, "tokens": 100}, {"every_steps": 9, "tokens": 100}, {"every_steps": 5, "tokens": 101})


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "digest"),
    [
        ("llama-tiny", "ddaa8efee2ea14a4760be2b130e8eabace337978a653da3bda88fe4997501e27"),
        ("llama-70b", "2cabbb3b66510a224de5cd3e61c6c89b8675705ed41e857040a34377b7587093"),
    ],
)
def test_a_model_without_newer_fields_is_the_one_that_checkpoints_of_earlier_releases_name(preset, digest):
    assert replace(config(), model=PRESETS[preset]).model_hash() == digest


@pytest.mark.parametrize(
    "change",
    [
        {"head_size": 16},
        {"qkv_bias": True},
        {"qk_norm": True},
        {"rope_scaling": RopeScaling(kind="Linear", factor=2.0)},
    ],
)
def test_another_computation_is_another_model(change):
    other = replace(config(), model=replace(PRESETS["llama-tiny"], **change))
    assert other.model_hash() != replace(config(), model=PRESETS["llama-tiny"]).model_hash()


# --- reasons of events -----------------------------------------------------------------------------------------------

_ROOT = Path(__file__).parents[2]
_WRITERS = ("operator/coxswain_operator", "runtime/coxswain_coordinator")


@cache
def _nodes() -> list[ast.AST]:
    files = [path for folder in _WRITERS for path in (_ROOT / folder).rglob("*.py")]
    return [node for path in files for node in ast.walk(ast.parse(path.read_text()))]


def _strings(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_every_reason_of_an_event_is_one_that_something_writes():
    assert set(EVENT_REASONS) <= _strings(_nodes())


def test_every_event_has_a_reason_of_the_list():
    calls = [node for node in _nodes() if isinstance(node, ast.Call) and node.args]
    made = [c for c in calls if re.fullmatch(r"Event|(\w+\.)*_?record_event", ast.unparse(c.func))]
    assert len(made) > 20
    assert {text for call in made for text in _strings(ast.walk(call.args[0]))} <= set(EVENT_REASONS)
