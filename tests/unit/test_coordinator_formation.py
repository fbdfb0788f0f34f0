"""The seats, the layout and the first step of a world, and when its devices do not suffice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.layout import Device
from coxswain.membership.stream import initial_cursor
from coxswain.wire import CheckpointManifest
from coxswain_coordinator.capacity import capacity_fault
from coxswain_coordinator.world.formation import at_checkpoint, layout_of, next_generation, vocabulary_of, world_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import SHAPES, agents


def test_ranks_follow_trainers_and_devices(tmp_path):
    layout = layout_of(make_job(tmp_path), list(reversed(agents(2, devices=2))))
    assert [s.device for s in layout.ranks()] == [Device(0, 0), Device(0, 1), Device(1, 0), Device(1, 1)]


@pytest.mark.parametrize(("step", "checkpoint"), [(None, ""), (6, "manifests/step-0000000006.json")])
def test_a_world_begins_at_the_checkpoint_that_its_workers_load(tmp_path, step, checkpoint):
    job = make_job(tmp_path)
    cursor = replace(initial_cursor(job.mix), step=step or 0)
    saved = step and CheckpointManifest(1, job.name, step, 1, cursor, "", 0, "", "", "", 320, (), 0.0)
    record = next_generation(job, 2, "me", agents(2), (), at_checkpoint(job, saved))
    world = world_of(record, agents(2), 320)
    assert (record.generation, record.author, record.trainers) == (2, "me", ("pod-0", "pod-1"))
    assert (world.generation, world.first_step, world.checkpoint) == (2, step or 0, checkpoint)


def test_too_few_replicas_for_the_longest_sequence_are_a_reason_to_wait(tmp_path):
    job = make_job(tmp_path)
    small = replace(job, parallelism=replace(job.parallelism, tokens_per_replica=100))
    assert capacity_fault(small, layout_of(small, agents(3))) == ""
    assert capacity_fault(small, layout_of(small, agents(2))).startswith("CapacityLost: 2 replicas hold 200 tokens")
    exact = replace(job, parallelism=replace(job.parallelism, tokens_per_replica=128))
    assert capacity_fault(exact, layout_of(exact, agents(2))) == ""


def test_a_world_has_the_layout_that_the_job_gives(tmp_path):
    job = make_job(tmp_path)
    shaped = replace(job, parallelism=replace(job.parallelism, layout=SHAPES))
    record = next_generation(shaped, 1, "me", agents(2, devices=2), (), at_checkpoint(shaped, None))
    assert record.layout.summary() == "1 x tp2/1pp2 + 1 x tp1pp1"
    assert [(s.device, s.replica, s.stage, s.tensor) for s in record.layout.ranks()] == [
        (Device(0, 0), 0, 0, 0), (Device(0, 1), 0, 0, 1), (Device(1, 0), 0, 1, 0), (Device(1, 1), 1, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "needed"), [({"layout": SHAPES}, 4), ({"tensor": 2, "pipeline": 2}, 4), ({"pipeline": 3}, 3)]
)
def test_fewer_devices_than_the_layout_needs_are_a_reason_to_wait(tmp_path, changes, needed):
    job = make_job(tmp_path)
    deep = replace(job, parallelism=replace(job.parallelism, **changes))
    words = f"CapacityLost: 2 devices, the layout needs {needed}; waiting for more trainers"
    assert capacity_fault(deep, layout_of(deep, agents(1, devices=2))) == words
    assert capacity_fault(deep, layout_of(deep, agents(2, devices=2))) == ""


def test_only_replicas_of_equal_stages_hold_a_sequence_together(tmp_path):
    job = make_job(tmp_path)
    parallelism = replace(job.parallelism, layout=SHAPES, tokens_per_replica=200)
    unequal = replace(job, parallelism=parallelism)
    assert capacity_fault(unequal, layout_of(unequal, agents(2, devices=2))).startswith(
        "CapacityLost: 1 replicas hold 200 tokens of one sequence, batch.maxSequenceTokens is 256"
    )


def test_the_vocabulary_follows_the_tokenizer_unless_the_model_has_its_own(tmp_path):
    job = make_job(tmp_path)
    assert (vocabulary_of(job, 257), vocabulary_of(job, 320)) == (320, 320)
    own = replace(job, model=replace(job.model, vocabulary=300))
    assert (vocabulary_of(own, 257), vocabulary_of(own, 300)) == (300, 300)
    with pytest.raises(Refused, match="vocabulary is 300, the tokenizer has 301 ids; give at least 301"):
        vocabulary_of(own, 301)
