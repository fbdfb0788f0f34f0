"""What a layout asks of the model and the trainers: every fault by name, before a pod starts."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.api.field_errors import FieldError
from coxswain.api.resolve import resolve
from coxswain.api.validate import check
from coxswain.config import JobConfig, ReplicaShape, StageShape
from tests.api_samples import LAYOUT, REMOVED, SHAPE, sample


def job(**changes: Any) -> dict[str, Any]:
    """Of 4 layers, 4 heads, 2 kvHeads, feedForward 384; two trainers at least. `_` in a name is a dot."""
    return sample("TrainingJob", {f"spec.{name.replace('_', '.')}": value for name, value in changes.items()})


def resolved(manifest: dict[str, Any], policy: dict[str, Any] | None = None) -> JobConfig | list[FieldError]:
    policies = [sample("ParallelismPolicy", policy)] if policy is not None else []
    return resolve(manifest, [sample("DataSource")], [sample("DataMix")], policies, uid="")


def stages(*tensor_and_layers: tuple[int, int], count: int = 1) -> dict[str, Any]:
    return {"count": count, "stages": [{"layers": layers, "tensor": tensor} for tensor, layers in tensor_and_layers]}


def layout(*replicas: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": list(replicas)}


@pytest.mark.parametrize(
    ("devices", "parallelism"),
    [
        (2, {"tensor": 2}), (4, {"tensor": 4}), (1, {"pipeline": 2}), (4, {"tensor": 2, "pipeline": 4}),
        (1, {"layout": LAYOUT}), (4, {"layout": layout(stages((2, 1), (1, 3)), stages((1, 4), count=2))}),
        (2, {"layout": layout(stages((2, 4)), stages((1, 2), (1, 2)))}),
    ],
)  # fmt: skip
def test_a_layout_that_model_and_trainers_can_have_is_accepted(devices: int, parallelism: dict[str, Any]) -> None:
    manifest = job(
        parallelism={**parallelism, "hybridData": {"tokensPerReplica": 2048}}, trainers_devicesPerTrainer=devices
    )
    assert check(manifest) == []
    assert isinstance(resolved(manifest), JobConfig)


@pytest.mark.parametrize(
    ("kv_heads", "parallelism", "says"),
    [
        (1, {}, "exchange: kvHeads 1 (allowed: Ring, Auto); set attention: Auto"),
        (1, {"mode": "Auto"}, "exchange: kvHeads 1 (allowed: Ring, Auto); set attention: Auto"),
        (2, {"tensor": 2}, "kvHeads 2 over tensor groups of 2 (allowed: Ring, Auto); set attention: Auto, or lower tensor"),
        (2, {"layout": layout(stages((1, 2), (2, 2)))}, "kvHeads 2 over tensor groups of 1, 2 (allowed: Ring, Auto);"),
    ],
)  # fmt: skip
def test_ulysses_is_refused_where_no_device_has_two_key_heads_and_auto_is_not(
    kv_heads: int, parallelism: dict[str, Any], says: str
) -> None:
    def faults(attention: str) -> list[FieldError]:
        policy = {**parallelism, "hybridData": {"tokensPerReplica": 4096, "attention": attention}}
        manifest = job(parallelism=policy, trainers_devicesPerTrainer=2)
        shape = {"layers": 4, "hidden": 128, "heads": 4, "kvHeads": kv_heads, "feedForward": 384}
        manifest["spec"]["model"] = {"config": shape}
        return check(manifest)

    (fault,) = faults("Ulysses")
    assert (fault.path, fault.reason) == ("spec.parallelism.hybridData.attention", "LayoutInvalid")
    assert says in fault.text
    assert faults("Auto") == faults("Ring") == []


REFUSED = [
    (
        {"tensor": 3}, 3, "spec.parallelism.tensor",
        "evenly: vocabulary 0 (the tokenizer, rounded up to a multiple of 64) and heads 4 and kvHeads 2 (allowed: 1)",
    ),
    (
        {"tensor": 2}, 3, "spec.parallelism.tensor",
        "parallelism.tensor 2 must divide trainers.devicesPerTrainer 3; change one of the two",
    ),
    (
        {"pipeline": 5}, 8, "spec.parallelism.pipeline",
        "5 stages cannot share 4 layers: each needs one (allowed: at most 4); lower pipeline",
    ),
    (
        {"tensor": 2, "pipeline": 3}, 2, "spec.trainers.minCount",
        "2 trainers of 2 devices are 4 devices; a replica of tensor 2 x pipeline 3 needs 6 (allowed: at least 3); raise",
    ),
    (
        {"layout": layout(stages((1, 4)), stages((1, 2), (1, 1)))}, 4, "spec.parallelism.layout.replicas[1].stages",
        "the stages have 3 layers, the model has 4 (allowed: 4); make their layers add up",
    ),
    (
        {"layout": layout(stages((4, 2), (1, 2)))}, 2, "spec.parallelism.layout.replicas[0].stages[0].tensor",
        "a tensor group of 4 devices does not fit on a trainer of devicesPerTrainer 2 (allowed: at most 2)",
    ),
    (
        {"layout": layout(stages((8, 4)))}, 8, "spec.parallelism.layout.replicas[0].stages[0].tensor",
        "a tensor group of 8 cannot share the model evenly: heads 4 (allowed: 1, 2, 4)",
    ),
    (
        {"layout": layout(stages((1, 4), count=5))}, 2, "spec.trainers.minCount",
        "2 trainers of 2 devices are 4 devices; the layout needs 5",
    ),
    (
        {"layout": layout(stages((1, 4), count=2), stages((2, 4), count=2))}, 3, "spec.parallelism.layout.replicas",
        "each from the first trainer with enough left, and 6 devices would do; list replicas with larger tensor groups first",
    ),
    (
        {"layout": layout(stages((1, 2), (1, 2), count=2049))}, 2, "spec.parallelism.layout.replicas",
        "all replicas together have 4098 stages (allowed: at most 4096); use fewer replicas or stages, or tensor and pipeline",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("parallelism", "devices", "path", "words"), REFUSED)
def test_a_layout_that_cannot_be_is_refused_by_field_value_and_way_out(
    parallelism: dict[str, Any], devices: int, path: str, words: str
) -> None:
    manifest = job(parallelism=parallelism, trainers_devicesPerTrainer=devices)
    assert [(f.path, f.text) for f in check(manifest) if f.path == path and words in f.text], check(manifest)


@pytest.mark.parametrize(("parallelism", "devices", "path", "words"), REFUSED)
def test_the_layout_of_a_policy_that_the_job_names_is_a_condition_with_the_policys_field(
    parallelism: dict[str, Any], devices: int, path: str, words: str
) -> None:
    by_name = {"parallelism": REMOVED, "parallelismRef": {"name": "policy"}}
    policy = {f"spec.{name}": value for name, value in parallelism.items()}
    found = resolved(job(**by_name, trainers_devicesPerTrainer=devices), policy)
    assert isinstance(found, list)
    place = path.replace("spec.parallelism", "ParallelismPolicy/policy spec")
    assert [f.reason for f in found if f.path == place and words in f.text] in (["LayoutInvalid"], ["CapacityTooSmall"])


def test_all_faults_of_a_layout_come_at_once() -> None:
    replicas = (stages((3, 4)), stages((1, 2), (16, 1)))
    found = check(job(parallelism={"layout": layout(*replicas)}, optimizer_learningRate="0"))
    assert {fault.path.removeprefix("spec.parallelism.layout.") for fault in found} == {
        "spec.optimizer.learningRate", "replicas[0].stages[0].tensor", "replicas[1].stages[1].tensor", "replicas[1].stages",
    }  # fmt: skip


def test_a_vocabulary_of_ones_own_and_key_heads_below_the_degree_may_be_shared() -> None:
    shape = {**SHAPE, "heads": 6, "kvHeads": 3, "hidden": 96, "feedForward": 96}
    three = {"tensor": 3, "hybridData": {"tokensPerReplica": 2048}}
    assert (
        check(job(parallelism=three, trainers_devicesPerTrainer=3, model={"config": {**shape, "vocabulary": 300}}))
        == []
    )
    (fault,) = check(
        job(parallelism=three, trainers_devicesPerTrainer=3, model={"config": {**shape, "vocabulary": 301}})
    )
    assert (fault.path, fault.value) == ("spec.parallelism.tensor", "3")
    assert "vocabulary 301" in fault.message


def test_a_model_of_ones_own_is_not_split_and_has_no_fault_where_it_is_whole() -> None:
    own = {"class": "my.gpt:GPT", "layers": 4, "hidden": 64, "heads": 4, "feedForward": 128}
    whole = {"hybridData": {"tokensPerReplica": 2048}}
    assert check(job(model={"custom": own}, parallelism=whole)) == []
    (fault,) = check(job(model={"custom": own}, parallelism={**whole, "pipeline": 2}))
    assert (fault.path, "pipeline 2" in fault.message) == ("spec.model.custom", True)


def test_unequal_replicas_do_not_hold_a_sequence_together() -> None:
    """A ring spans replicas of equal layer split and tensor degree."""
    unequal, equal = layout(stages((1, 4)), stages((1, 2), (1, 2))), layout(stages((1, 4), count=2))
    trainers = {"trainers_devicesPerTrainer": 2, "batch_maxSequenceTokens": 1500}
    assert check(job(parallelism={"layout": equal, "hybridData": {"tokensPerReplica": 1024}}, **trainers)) == []
    (fault,) = check(job(parallelism={"layout": unequal, "hybridData": {"tokensPerReplica": 1024}}, **trainers))
    assert (fault.path, fault.reason) == ("spec.batch.maxSequenceTokens", "CapacityTooSmall")
    assert (
        "4 devices at minCount make 1 equal replicas, which hold tokensPerReplica 1024 x min(maxDegree 64, 1) = 1024"
        in (fault.message)
    )


def test_a_layout_in_line_is_resolved_for_the_services() -> None:
    replicas = (stages((2, 1), (1, 3)), stages((1, 4), count=2))
    parallelism = {"layout": layout(*replicas), "hybridData": {"tokensPerReplica": 2048}}
    found = resolved(job(parallelism=parallelism, trainers_devicesPerTrainer=4))
    assert isinstance(found, JobConfig)
    assert found.parallelism.layout == (
        ReplicaShape((StageShape(1, 2), StageShape(3, 1))), ReplicaShape((StageShape(4, 1),), count=2),
    )  # fmt: skip
    assert found.parallelism.least_devices == 5


@pytest.mark.parametrize("field", ["count", "minCount", "maxCount"])
def test_more_trainers_than_the_operator_can_look_at_in_one_pass_are_refused_by_name(field: str) -> None:
    manifest = job()
    manifest["spec"]["trainers"] = {"count": 10_000, "minCount": 2, "maxCount": 10_000}
    assert check(manifest) == []
    manifest["spec"]["trainers"][field] = 10_001
    (fault, *_) = check(manifest)
    assert fault.path == f"spec.trainers.{field}"
    assert "10000" in fault.text
