"""A job that cannot fit into its devices is refused before a pod starts, with changes that make it fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest

from coxswain.api import memory_faults
from coxswain.api.field_errors import FieldError
from coxswain.api.memory_faults import fullest, touched
from coxswain.api.resolve import resolve
from coxswain.api.validate import check
from coxswain.config import JobConfig, ModelConfig, ParallelConfig, ReplicaShape, StageShape
from coxswain.cost import memory
from coxswain.cost.memory import Shares, StagePlace, Widths, Workload, peaks, spots_of, stage_peak
from coxswain.holdings import ParameterSpec
from coxswain.layout import Device, Layout, layout_for, uniform_layout
from coxswain.models import parameter_specs
from tests.api_samples import sample


def job(preset: str, trainers: int, devices: int, batch: dict[str, int] | None = None, **policy: Any) -> dict[str, Any]:
    changes = {
        "spec.model": {"preset": preset},
        "spec.trainers": {"count": trainers, "devicesPerTrainer": devices},
        "spec.batch": batch or {"tokensPerStep": 1 << 20, "maxSequenceTokens": 8192},
        "spec.parallelism": {"hardware": "a100-80g", **policy},
    }
    return sample("TrainingJob", changes)


def fault(manifest: dict[str, Any]) -> FieldError:
    (found,) = check(manifest)
    assert (found.path, found.reason) == ("spec.parallelism.hardware", "MemoryTooSmall")
    return found


@pytest.mark.parametrize(
    ("preset", "trainers", "devices", "policy"),
    [("llama-1b", 1, 1, {}), ("llama-7b", 1, 8, {"recompute": "Full"}), ("llama-7b", 1, 8, {"tensor": 2}),
     ("llama-70b", 16, 8, {"recompute": "Full", "tensor": 8}), ("llama-70b", 1, 1, {"hardware": "cpu"})],
)  # fmt: skip
def test_a_job_that_fits_or_runs_without_gpus_is_accepted(
    preset: str, trainers: int, devices: int, policy: dict[str, Any]
) -> None:
    assert check(job(preset, trainers, devices, **policy)) == []


def test_a_refusal_names_the_bytes_their_parts_and_the_limit() -> None:
    text = fault(job("llama-7b", 1, 8)).message
    found = re.fullmatch(
        r"replica 0, stage 0, tensor rank 0 needs ([\d.]+) GiB \(parameters ([\d.]+) GiB, gradients ([\d.]+) GiB, optimizer "
        r"([\d.]+) GiB, activations ([\d.]+) GiB, the layer or loss at work ([\d.]+) GiB\), and 2.0 GiB beside tensors; "
        r"a device of a100-80g has 80.0 GiB",
        text,
    )
    assert found, text
    total, *parts = (float(x) for x in found.groups())
    assert total == pytest.approx(sum(parts), abs=0.3)
    assert total > 78
    assert parts[:3] == pytest.approx([12.1, 24.1, 9.0], abs=0.1)  # 6.5 G parameters: 2, 4 and 12 / 8 bytes of each


WIDTHS = Widths(hidden=8, query=8, key=4, inner=16, heads=2, rows=64)


def test_every_stage_but_the_first_keeps_its_input_of_each_graph_in_flight() -> None:
    first, second = (
        stage_peak(40, WIDTHS, StagePlace(2, place, 3), 4, Workload(2, 100)).activations for place in (True, False)
    )
    assert second - first == 3 * 100 * 2 * 8


@pytest.mark.parametrize(
    ("replicas", "ward", "size"),
    [(1, 0, 0), (1, 20, 4 * 20), (4, 0, 4 * 10 + memory.BUCKETS), (4, 20, 4 * (10 + 5) + memory.BUCKETS)],
)
def test_a_reduction_takes_the_owned_gradient_and_the_wards_and_buckets_where_there_are_peers(
    replicas: int, ward: int, size: int
) -> None:
    work = Workload(2, 100, copies=ward > 0)
    assert stage_peak(40, WIDTHS, StagePlace(2, True, 1), replicas, work, ward).reduction == size


CHANGES = re.compile(r"(recompute|offload|tensor|pipeline): (\w+)|hybridData\.tokensPerReplica at most (\d+)")


def changed(way_out: str) -> list[dict[str, Any]]:
    """The policies that a way out names."""
    policies = []
    for alternative in way_out.removeprefix("set ").split(" or "):
        policy: dict[str, Any] = {}
        for name, value, tokens in CHANGES.findall(alternative):
            change = {"hybridData": {"tokensPerReplica": int(tokens)}} if tokens else {name: value}
            policy |= {k: int(v) if str(v).isdigit() else v for k, v in change.items()} if not tokens else change
        policies.append(policy)
    return policies


@pytest.mark.parametrize(
    ("preset", "trainers", "devices", "fields"),
    [("llama-7b", 1, 8, [["recompute"], ["tensor"], ["pipeline"], ["hybridData"]]), ("llama-13b", 1, 8, [["tensor"]]),
     ("llama-70b", 4, 8, [["recompute", "tensor", "pipeline"]])],
)  # fmt: skip
def test_every_way_out_that_a_refusal_names_makes_the_job_fit(
    preset: str, trainers: int, devices: int, fields: list[list[str]]
) -> None:
    policies = changed(fault(job(preset, trainers, devices)).way_out)
    assert [list(policy) for policy in policies] == fields
    for policy in policies:
        assert check(job(preset, trainers, devices, **policy)) == []


@pytest.mark.parametrize(("tokens", "named"), [(7168, True), (8192, False)])
def test_offload_is_named_where_what_it_moves_in_any_task_makes_the_job_fit(tokens: int, named: bool) -> None:
    """A quarter of the activations of the shortest sequences, by the bandwidth of the host's link."""
    policy: dict[str, Any] = {"hybridData": {"tokensPerReplica": tokens}}
    batch = {"tokensPerStep": 1 << 20, "maxSequenceTokens": 4096}
    way_out = fault(job("llama-7b", 1, 8, batch, **policy)).way_out
    assert ("offload: Auto" in way_out) is named
    with_offload = check(job("llama-7b", 1, 8, batch, offload="Auto", **policy))
    assert [found.reason for found in with_offload] == ([] if named else ["MemoryTooSmall"])
    assert all("offload" not in found.way_out for found in with_offload)


def test_an_exchange_of_heads_needs_memory_for_what_it_brings_home() -> None:
    """A ring's output is kept as attention and as the next product need it."""

    def needed(attention: str) -> float:
        found = fault(job("llama-7b", 1, 8, hybridData={"tokensPerReplica": 8192, "attention": attention}))
        return float(found.value.removesuffix(" GiB"))

    assert needed("Ulysses") - needed("Ring") == pytest.approx(32 * 2 * 4096 * 8192 / 2**30, abs=0.2)


def test_a_job_that_nothing_makes_fit_is_refused_with_devices_or_model_to_change() -> None:
    assert fault(job("llama-70b", 1, 1)).way_out == "use devices with more memory, more trainers, or a smaller model"


def test_fewer_tokens_are_no_way_out_where_the_longest_sequence_needs_them() -> None:
    """8 replicas of 8,192 tokens are what a sequence of 65,536 needs."""
    batch = {"tokensPerStep": 1 << 20, "maxSequenceTokens": 65_536}
    assert "tokensPerReplica" not in fault(job("llama-7b", 1, 8, batch)).way_out
    assert "tensor" not in fault(job("llama-7b", 1, 8, batch)).way_out


def test_a_policy_of_another_object_is_judged_when_both_are_known() -> None:
    manifest = job("llama-7b", 1, 8)
    manifest["spec"]["parallelismRef"] = {"name": "policy"}
    del manifest["spec"]["parallelism"]
    policy = sample("ParallelismPolicy", {"spec": {"hardware": "a100-80g"}})
    policy["metadata"]["name"] = "policy"
    found = resolve(manifest, [sample("DataSource")], [sample("DataMix")], [policy], uid="")
    assert isinstance(found, list)
    assert [f.reason for f in found] == ["MemoryTooSmall"]


def noted(call: Callable[..., Any], made: list[str]) -> Callable[..., Any]:
    def note(*args: Any, **named: Any) -> Any:
        made.append(call.__name__)
        return call(*args, **named)

    return note


@pytest.mark.parametrize("policy", [{}, {"tensor": 2, "pipeline": 4}, {"mode": "Auto"}], ids=["", "stages", "Auto"])
@pytest.mark.parametrize("copies", ["None", "EveryStep"])
def test_a_job_of_10_000_trainers_is_judged_by_no_more_sums_than_one_of_a_thousand(
    policy: dict[str, Any], copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal ranks need the same."""
    made: list[str] = []
    for name in ("stage_peak", "widths_of"):
        monkeypatch.setattr(memory, name, noted(getattr(memory, name), made))

    def calls(trainers: int) -> int:
        made.clear()
        fullest.cache_clear()
        manifest = job("llama-1b", trainers, 8, **policy)
        manifest["spec"]["recovery"] = {"copies": copies}
        assert isinstance(resolve(manifest, [sample("DataSource")], [sample("DataMix")], [], uid=""), JobConfig)
        return len(made)

    assert calls(500) <= 1200  # and what is remembered of the model is known from here on
    assert calls(10_000) == calls(1000) <= 1200


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_model_of_many_layers_is_judged_by_no_more_boxes_than_one_of_few(
    tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator judges jobs between renewals of its Lease: one model of 512 layers that fits nowhere took 23 s."""
    made: list[str] = []
    monkeypatch.setattr(ParameterSpec, "box", noted(ParameterSpec.box, made))

    def boxes(layers: int) -> int:
        made.clear()
        model = ModelConfig(layers=layers, hidden=64, heads=4, kv_heads=4, feed_forward=96, vocabulary=512)
        layout = uniform_layout([Device(0, d) for d in range(4 * tensor)], layers, tensor, 4)
        assert len(spots_of(Shares(model, parameter_specs(model, 512)), layout, copies=False)) == 4 * tensor
        return len(made)

    assert boxes(64) == boxes(8) < 100


def test_policies_whose_devices_lack_room_for_an_even_share_of_the_model_are_not_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    monkeypatch.setattr(memory_faults, "fullest", noted(fullest, made))
    assert "use devices with more memory" in fault(job("llama-70b", 1, 1)).way_out
    assert made == ["fullest"]  # of the policy itself


@pytest.mark.parametrize("standby", [0, 1, 900])
def test_trainers_that_a_layout_leaves_on_standby_are_not_looked_at(standby: int) -> None:
    stages = (StageShape(2, 2), StageShape(3, 1))
    parallel = ParallelConfig(layout=(ReplicaShape(stages, 3),), tokens_per_replica=128)
    model = ModelConfig(layers=5, hidden=64, heads=4, kv_heads=4, feed_forward=96, vocabulary=512)
    assert touched(parallel, 5 + standby) == min(6, 5 + standby)
    assert fullest(model, parallel, 128, 5 + standby, 2, False) == fullest(model, parallel, 128, 5, 2, False)


def test_a_job_that_is_judged_again_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator judges each job at every pass."""
    made: list[str] = []
    monkeypatch.setattr(memory, "stage_peak", noted(memory.stage_peak, made))
    fullest.cache_clear()
    for trainers, computed in ((16, True), (16, False), (17, True)):
        made.clear()
        found = resolve(job("llama-1b", trainers, 8), [sample("DataSource")], [sample("DataMix")], [], uid="")
        assert isinstance(found, JobConfig) and bool(made) is computed


def test_a_few_of_many_equal_replicas_show_what_the_fullest_device_of_all_needs() -> None:
    """Also which rank's copy it keeps: that of another stage where trainers have fewer devices than a replica."""
    model = ModelConfig(layers=5, hidden=64, heads=4, kv_heads=4, feed_forward=96, vocabulary=512)
    specs, checked = parameter_specs(model, 512), 0
    for trainers, each, tensor, pipeline in product((1, 2, 3, 7, 30), (1, 2, 3, 4, 8), (1, 2, 4), (1, 2, 3)):
        if each % tensor or trainers * each < tensor * pipeline:
            continue
        checked += 1
        layout = uniform_layout([Device(t, d) for t in range(trainers) for d in range(each)], 5, tensor, pipeline)
        parallel = ParallelConfig(tensor=tensor, pipeline=pipeline, tokens_per_replica=128)
        for copies in (True, False):
            every = peaks(model, specs, layout, Workload(2, 128, copies=copies and trainers > 1)).values()
            found = fullest(model, parallel, 1024, trainers, each, copies)
            assert found is not None
            assert found[1].total == max(peak.total for peak in every), (trainers, each, tensor, pipeline, copies)
    assert checked > 90


def test_a_layout_is_laid_out_once_however_many_ways_out_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a hundred thousand replicas took six seconds of the operator's event loop each time."""
    made: list[str] = []
    monkeypatch.setattr(memory_faults, "layout_for", noted(layout_for, made))
    monkeypatch.setattr(memory_faults, "spots_of", noted(spots_of, looked := []))
    replicas = [{"count": 37, "stages": [{"layers": 1}, {"layers": 1}]}, {"stages": [{"layers": 2}]}]
    shape = {"layout": {"replicas": replicas}, "hybridData": {"tokensPerReplica": 10**9}, "hardware": "a100-80g"}
    manifest = job("llama-1b", 10, 8, **shape)
    model = {"layers": 2, "hidden": 8192, "heads": 8, "kvHeads": 8, "feedForward": 1024}
    manifest["spec"] |= {"model": {"config": model}, "batch": {"tokensPerStep": 10**9, "maxSequenceTokens": 1000}}
    found = resolve(manifest, [sample("DataSource")], [sample("DataMix")], [], uid="")
    assert isinstance(found, list) and [f.reason for f in found] == ["MemoryTooSmall"]
    assert len(made) == len(looked) == 1


def test_ways_out_with_copies_lay_out_few_devices_beyond_two_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 trainers of 64 devices and a model that fits nowhere took 20 s: half a million devices, of each way out."""
    seen: list[int] = []

    def counted(devices: Iterable[Device], *rest: Any) -> Layout:
        mine = list(devices)
        seen.append(len(mine))
        return layout_for(mine, *rest)

    monkeypatch.setattr(memory_faults, "layout_for", counted)
    manifest = job("llama-70b", 10_000, 64, {"tokensPerStep": 10**9, "maxSequenceTokens": 1000})
    manifest["spec"] |= {"recovery": {"copies": "EveryStep"}, "model": {"config": {
        "layers": 100, "hidden": 65536, "heads": 512, "kvHeads": 512, "feedForward": 131072}}}  # fmt: skip
    manifest["spec"]["parallelism"]["hybridData"] = {"tokensPerReplica": 10**7}
    assert "use devices with more memory" in fault(manifest).way_out
    assert len(seen) > 3
    assert max(seen) <= 2 * 64 * 64 + 2 * 64
