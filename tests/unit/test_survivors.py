"""The layout of a world after a loss: the replicas that are whole, or the job's own layout for the devices that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig, ParallelConfig
from coxswain.cost.constants import load_hardware
from coxswain.ladder.options import draft_of
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.layouts import costs as layout_costs
from coxswain.presets import PRESETS
from coxswain_coordinator.capacity import capacity_fault, devices_of
from coxswain_coordinator.stragglers.offers import costs_now
from coxswain_coordinator.world.formation import layout_of
from coxswain_coordinator.world.survivors import after_loss, has_lost
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents

VOCABULARY = 320


def job_of(folder: Path, trainers: int, each: int = 1, longest: int = 64, **parallel: Any) -> JobConfig:
    job = make_job(folder, trainers=trainers, devices_per_trainer=each)
    batch = replace(job.batch, tokens_per_step=8192, max_sequence_tokens=longest)
    return replace(job, batch=batch, parallelism=ParallelConfig(tokens_per_replica=256, **parallel))


def own(job: JobConfig, *lost: int) -> Layout:
    """The job's own layout without these trainers."""
    members = agents(job.trainers, job.devices_per_trainer)
    return layout_of(job, [member for i, member in enumerate(members) if i not in lost])


def pairs(*trainers: tuple[int, int], aside: tuple[int, ...] = ()) -> Layout:
    """Replicas of two stages on two trainers of one device each."""
    replicas = (Replica((Stage((Device(a, 0),), 0, 1), Stage((Device(b, 0),), 1, 2))) for a, b in trainers)
    return Layout(tuple(replicas), tuple(Device(index, 0) for index in aside))


def test_of_two_layouts_that_are_as_fast_the_one_that_moves_nothing_comes_first(tmp_path):
    job = job_of(tmp_path, 4, pipeline=2)
    before = own(job)
    assert before == pairs((0, 1), (2, 3)) and own(job, 1) == pairs((0, 2), aside=(3,))
    assert after_loss(job, VOCABULARY, before, own(job, 1), {}) == (pairs((2, 3), aside=(0,)), own(job, 1))


def test_the_jobs_own_layout_comes_first_where_it_makes_more_replicas_of_what_is_left(tmp_path):
    job = job_of(tmp_path, 6, pipeline=2)
    found = after_loss(job, VOCABULARY, own(job), own(job, 1, 3), {})
    assert found == (pairs((0, 2), (4, 5)), pairs((4, 5), aside=(0, 2)))


def test_only_the_jobs_own_layout_is_left_where_no_replica_is_whole_or_those_that_are_are_just_it(tmp_path):
    job = job_of(tmp_path, 4, pipeline=2)
    assert after_loss(job, VOCABULARY, own(job), own(job, 0, 2), {}) == (own(job, 0, 2),)
    assert after_loss(job, VOCABULARY, own(job), own(job, 2, 3), {}) == (pairs((0, 1)),)


def test_replicas_that_were_planned_around_a_slow_device_survive_where_the_own_layout_would_wait_for_it(tmp_path):
    """Layers lie where speeds are; without a speed the own layout, whose stages are as long, is as good and moves more."""
    job = replace(job_of(tmp_path, 4, pipeline=2), model=replace(make_job(tmp_path).model, layers=8))
    slow = Device(0, 0)

    def split(*cuts: tuple[int, int, int]) -> Layout:
        return Layout(
            tuple(Replica((Stage((Device(a, 0),), 0, n), Stage((Device(b, 0),), n, 8))) for a, b, n in cuts),
        )

    before, now = split((0, 1, 2), (2, 3, 4)), own(job, 2)
    assert now == replace(split((0, 1, 4)), standby=(Device(3, 0),))
    kept = replace(split((0, 1, 2)), standby=(Device(3, 0),))
    assert after_loss(job, VOCABULARY, before, now, {slow: 0.3}) == (kept, now)
    assert after_loss(job, VOCABULARY, before, now, {}) == (now, kept)


@pytest.mark.parametrize(("gain", "first"), [(-1.0, 0), (0.0, 0), (0.005, 0), (0.006, 1), (0.5, 1)])
def test_the_jobs_own_layout_comes_first_only_where_it_gains_more_than_the_cost_model_may_err(tmp_path, gain, first):
    job = job_of(tmp_path, 4, pipeline=2)
    kept, now = pairs((2, 3), aside=(0,)), own(job, 1)
    found = after_loss(
        job, VOCABULARY, own(job), now, {}, None, lambda _, layout: 1.0 if layout == kept else 1.0 - gain
    )
    assert found[0] == (kept, now)[first]


def test_layouts_after_a_loss_are_compared_by_the_profile_of_the_job_whatever_its_policy_names(tmp_path):
    job, seen = job_of(tmp_path, 4, pipeline=2), list[float]()

    def seconds(costs, layout):
        seen.append(costs.layer_seconds(1, 1.0))
        return 1.0

    for hardware in (load_hardware("h100-80g"), load_hardware(job.parallelism.hardware), None):
        after_loss(job, VOCABULARY, own(job), own(job, 1), {}, hardware, seconds)
    by_profile, by_policy = seen[0], seen[2]
    assert by_profile != by_policy and seen == [by_profile] * 2 + [by_policy] * 4


def test_more_replicas_than_the_jobs_own_layout_has_are_judged_with_a_step_that_all_of_them_share(tmp_path):
    job = replace(job_of(tmp_path, 9, pipeline=8), model=replace(make_job(tmp_path).model, layers=8))
    job = replace(job, batch=replace(job.batch, tokens_per_step=256))
    before = Layout(tuple(Replica((Stage((Device(t, 0),), 0, 8),)) for t in range(9)))
    kept = Layout(before.replicas[:8])
    assert set(after_loss(job, VOCABULARY, before, own(job, 8), {})) == {kept, own(job, 8)}


def test_a_layout_that_cannot_hold_the_longest_sequence_is_none(tmp_path):
    job = job_of(tmp_path, 4, pipeline=2, longest=512)
    before = own(job)
    assert not capacity_fault(job, before)
    assert after_loss(job, VOCABULARY, before, own(job, 1), {}) == (own(job, 1),), "neither can: the job waits"
    whole = Layout(tuple(Replica((Stage((Device(index, 0),), 0, 2),)) for index in (0, 2)))
    aside = replace(whole, standby=(Device(1, 0), Device(3, 0)))
    assert after_loss(job, VOCABULARY, aside, own(job, 1, 3), {}) == (whole,), (
        "two replicas hold what one pipeline does not"
    )


def test_replicas_whose_devices_lack_the_memory_for_the_shards_of_those_that_are_gone_do_not_survive(
    tmp_path, monkeypatch
):
    job = replace(job_of(tmp_path, 6, pipeline=2), model=PRESETS["llama-7b"])
    before, now = own(job), own(job, 1, 3)
    kept = Layout(before.replicas[2:], (Device(0, 0), Device(2, 0)))
    costs = costs_now(job, VOCABULARY, now, {})

    def most(layout: Layout) -> int:
        draft, count = draft_of(costs, layout), len(layout.replicas)
        return max(costs.peak(1, n, i == 0, 2 - i, count).total for c in draft.chains for i, n in enumerate(c.layers))

    assert most(kept) > most(now)
    for limit, found in ((most(kept), (now, kept)), (most(kept) - 1, (now,)), (most(now) - 1, (now,))):
        monkeypatch.setattr(layout_costs, "device_memory", lambda _, limit=limit: limit + layout_costs.RESERVED)
        assert after_loss(job, VOCABULARY, before, now, {}) == found, limit


@pytest.mark.parametrize("each", [1, 2, 8])
@pytest.mark.parametrize("lost", [(0,), (1,), (3,), (1, 2)], ids=str)
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_layout_after_a_loss_has_exactly_the_devices_that_are_left(tmp_path, each, lost, pipeline):
    job = job_of(tmp_path, 4, each, pipeline=pipeline)
    left = {Device(t, d) for t in range(4) if t not in lost for d in range(each)}
    found = after_loss(job, VOCABULARY, own(job), own(job, *lost), {})
    assert found and all(devices_of(layout) == left and layout.replicas for layout in found)


@pytest.mark.parametrize(
    ("size", "there", "lost"),
    [(3, (0, 1, 2), False), (3, (0, 2), True), (2, (0, 1), False), (2, (1,), True), (3, (), True)],
)
def test_a_trainer_is_lost_if_it_is_gone_and_the_job_keeps_it(tmp_path, size, there, lost):
    assert has_lost(own(job_of(tmp_path, 3)), size, there) is lost
