"""Layouts that the engine runs on the present devices, as the ladder is offered them."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from coxswain.config import ParallelConfig
from coxswain.cost.constants import load_hardware
from coxswain.ladder.values import LEAST_GAIN, Option, Options
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain_coordinator.capacity import capacity_fault, devices_of
from coxswain_coordinator.coordinator import Coordinator
from coxswain_coordinator.planning.placers import place_step
from coxswain_coordinator.stragglers.judge import judged
from coxswain_coordinator.stragglers.offers import costs_of, offers, runs
from coxswain_coordinator.world.formation import at_checkpoint, next_generation
from tests.unit.coordinator_fakes import TOKEN, make_job, store_of
from tests.unit.coordinator_samples import agents


def cluster_job(folder, **batch: int):
    job = make_job(folder, trainers=2, devices_per_trainer=4)
    model = replace(job.model, layers=8)
    parallel = ParallelConfig(tokens_per_replica=256, pipeline=2, hardware="a100-80g")
    return replace(job, model=model, parallelism=parallel, batch=replace(job.batch, tokens_per_step=8192, **batch))


def layout_of(job) -> Layout:
    return next_generation(job, 1, "me", agents(2, devices=4), (), at_checkpoint(job, None)).layout


def test_offers_are_layouts_of_the_same_devices_on_which_the_longest_sequence_fits(tmp_path):
    short, long = cluster_job(tmp_path), cluster_job(tmp_path, max_sequence_tokens=1024)
    layout, speeds = layout_of(short), {Device(0, 1): 0.1}
    found = offers(short, 320, layout, speeds)
    assert found.stay > found.healthy and min(o.seconds for o in found.layouts) < found.stay
    for option in found.layouts:
        assert devices_of(option.layout) == devices_of(layout)
        assert runs(short, layout, option.layout)
    assert not capacity_fault(long, layout)
    assert all(not capacity_fault(long, o.layout) for o in offers(long, 320, layout, speeds).layouts)
    few = replace(layout, replicas=layout.replicas[:3], standby=tuple(
        d for r in layout.replicas[3:] for s in r.stages for d in s.devices
    ))  # fmt: skip
    assert runs(short, layout, few) and not runs(long, layout, few)
    assert not runs(short, layout, replace(few, standby=()))


def test_layouts_are_offered_by_the_profile_of_the_job_whatever_its_policy_names(tmp_path):
    job, profile = cluster_job(tmp_path), load_hardware("h100-80g")
    named = replace(job, parallelism=replace(job.parallelism, hardware="h100-80g"))
    layout, speeds = layout_of(job), {Device(0, 1): 0.1}
    by_profile = offers(job, 320, layout, speeds, hardware=profile)
    assert by_profile == offers(named, 320, layout, speeds)
    assert by_profile.stay != offers(job, 320, layout, speeds).stay


def test_the_ladder_of_a_coordinator_with_a_profile_offers_and_judges_layouts_by_it(tmp_path):
    job, profile = cluster_job(tmp_path), load_hardware("h100-80g")
    coordinator = Coordinator(job, store_of(job), TOKEN, place_step, "me", None, time.monotonic, hardware=profile)
    ladder, layout, speeds = coordinator.state.ladder, layout_of(job), {Device(0, 1): 0.1}
    offered = ladder.planner(job, 320, layout, speeds)
    assert offered == offers(job, 320, layout, speeds, hardware=profile)
    steps = [(256, 200, 100, 60)]
    assert ladder.judge(job, 320, offered, steps) == judged(job, 320, offered, steps, profile)
    assert judged(job, 320, offered, steps, profile).stay != judged(job, 320, offered, steps).stay


def stages_on(*stages: tuple[tuple[Device, ...], int, int], aside: tuple[Device, ...] = ()) -> Layout:
    """One replica."""
    return Layout((Replica(tuple(Stage(*stage) for stage in stages)),), aside)


A, B, C = Device(0, 0), Device(1, 0), Device(2, 0)
BOTH = stages_on(((A, B), 0, 2))


@pytest.mark.parametrize(
    ("layout", "changes", "longest", "engine_runs"),
    [
        (stages_on(((A,), 0, 1), ((B,), 1, 2)), {}, 64, True),
        (stages_on(((A,), 0, 2), aside=(B,)), {}, 64, True),
        (BOTH, {}, 64, False),  # the job has it
        (stages_on(((A, B), 0, 1), ((), 1, 2)), {}, 64, False),  # nothing computes the second stage
        (stages_on(((A,), 0, 2), ((B,), 2, 2)), {}, 64, False),  # it has no layers
        (stages_on(((A,), 0, 2)), {}, 64, False),  # a device is missing
        (stages_on(((A,), 0, 2), aside=(B, C)), {}, 64, False),  # one is not there
        (stages_on(((A,), 0, 2), aside=(C,)), {}, 64, False),
        (stages_on(((A,), 0, 2), aside=(B,)), {}, 512, False),  # a replica holds 256 tokens
        (stages_on(((A,), 0, 1), ((B,), 1, 2)), {"custom": "models.py:Model"}, 64, False),
        (stages_on(((A,), 0, 2), aside=(B,)), {"custom": "models.py:Model"}, 64, True),
    ],
)
def test_a_layout_is_offered_only_if_the_engine_runs_it_on_just_the_present_devices(
    tmp_path, monkeypatch, layout, changes, longest, engine_runs
):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=longest))
    job = replace(job, model=replace(job.model, **changes))
    assert runs(job, BOTH, layout) is engine_runs
    one = Option("Groups", layout, 8.0, 5.0)
    monkeypatch.setattr(
        "coxswain_coordinator.stragglers.offers.options_for", lambda *_, **__: Options(BOTH, {}, 9.0, 6.0, (one,))
    )
    assert offers(job, 320, BOTH, {}).layouts == ((one,) if engine_runs else ())


@pytest.mark.parametrize(
    ("changes", "widest"), [({}, 4), ({"optimizer": "Muon"}, 1), ({"custom": "models.py:Model"}, 1)]
)
def test_the_planner_counts_all_devices_as_well_and_no_tensor_groups_where_the_engine_has_none(
    tmp_path, changes, widest
):
    job = cluster_job(tmp_path)
    job = replace(job, optimizer=replace(job.optimizer, kind=changes.get("optimizer", "AdamW")))
    job = replace(job, model=replace(job.model, custom=changes.get("custom", job.model.custom)))
    costs = costs_of(job, 320, layout_of(job))
    cluster = costs.cluster
    assert (cluster.max_tensor, cluster.sequence, cluster.global_batch) == (widest, 256, 32)
    assert [(node.name, len(node.devices)) for node in cluster.nodes] == [("trainer-0", 4), ("trainer-1", 4)]
    assert all(device.slowdown == 1.0 for node in cluster.nodes for device in node.devices)
    few = replace(job, batch=replace(job.batch, tokens_per_step=128))
    assert (costs_of(few, 320, layout_of(job)).cluster.global_batch, costs_of(few, 320, layout_of(job)).cluster.sequence) == (
        4 * len(layout_of(job).replicas), 128
    )  # fmt: skip


@pytest.mark.parametrize("each", [1, 2, 8])
@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("changes", [{}, {"optimizer": "Muon"}, {"custom": "models.py:Model"}], ids=str)
def test_offers_after_a_loss_are_faster_layouts_of_just_the_devices_that_are_left(tmp_path, each, lost, changes):
    """Of three trainers; one whole replica is left of those with two stages, and the devices of the others stand by."""
    job = replace(cluster_job(tmp_path), trainers=3, devices_per_trainer=each)
    custom, kind = changes.get("custom", job.model.custom), changes.get("optimizer", "AdamW")
    job = replace(job, model=replace(job.model, custom=custom), optimizer=replace(job.optimizer, kind=kind))
    left = [Device(t, d) for t in range(3) if t != lost for d in range(each)]
    whole = Layout((Replica((Stage((left[0],), 0, 8),)),), tuple(left[1:]))
    speeds = {Device(lost, d): 0.0 for d in range(each)}
    found = offers(job, 320, whole, speeds, 0.0)
    assert found.layouts and (found.current, found.speeds) == (whole, speeds)
    for option in found.layouts:
        assert devices_of(option.layout) == set(left) and option.seconds < found.stay < float("inf")
        degrees = {len(s.devices) for r in option.layout.replicas for s in r.stages}
        assert degrees == {1} or not changes
    never = offers(job, 320, whole, {}, 0.0)
    assert never.speeds == {} and (never.layouts == found.layouts or lost == 2), "one that was never there is no other"


def test_a_gain_below_what_a_search_is_worth_is_offered_after_a_loss_alone(tmp_path, monkeypatch):
    asked = list[float]()
    monkeypatch.setattr(
        "coxswain_coordinator.stragglers.offers.options_for",
        lambda *_, least_gain: asked.append(least_gain) or Options(BOTH, {}, 9.0, 6.0),
    )
    job = make_job(tmp_path)
    offers(job, 320, BOTH, {}, 0.0)
    offers(job, 320, BOTH, {})
    assert asked == [0.0, LEAST_GAIN]


def test_the_layout_without_the_slow_replica_is_offered_though_it_computes_less(tmp_path):
    job = make_job(tmp_path, trainers=4, parallelism=ParallelConfig(tokens_per_replica=256, hardware="a100-80g"))
    whole = next_generation(job, 1, "me", agents(4), (), at_checkpoint(job, None)).layout
    slow = Device(1, 0)
    found = offers(job, 320, whole, {slow: 0.25})
    (aside,) = (
        o
        for o in found.layouts
        if o.layout.standby == (slow,) and o.layout.replicas == whole.replicas[:1] + whole.replicas[2:]
    )
    assert aside.seconds > found.stay
    assert not any(o.layout.standby for o in offers(job, 320, whole, {}).layouts)
