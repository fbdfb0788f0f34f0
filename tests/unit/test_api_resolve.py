"""Custom resources become the one JobConfig, or faults with the names and numbers that a person needs."""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.api.field_errors import FieldError
from coxswain.api.resolve import claims, resolve
from coxswain.api.validate import check
from coxswain.config import CustomModel, JobConfig, ParameterGroupConfig, RopeScaling
from coxswain.models import parameter_specs
from coxswain.presets import PRESETS
from tests.api_samples import PHASE, REMOVED, SHAPE, Manifest, sample

BY_REFERENCE = {"spec.parallelism": REMOVED, "spec.parallelismRef": {"name": "policy"}}
TWO = [{"name": n, "sourceRef": {"name": n}, "weight": w} for n, w in (("docs", 300), ("code", 700))]


def world(job: dict[str, Any] | None = None, *, sources: list[Manifest] | None = None, mixes: list[Manifest] | None = None,
          policies: list[Manifest] | None = None) -> JobConfig | list[FieldError]:  # fmt: skip
    sources = [sample("DataSource")] if sources is None else sources
    mixes = [sample("DataMix")] if mixes is None else mixes
    return resolve(sample("TrainingJob", job), sources, mixes, policies or [], "uid-1")


def right(*args: Any, **more: Any) -> JobConfig:
    resolved = world(*args, **more)
    assert isinstance(resolved, JobConfig), resolved
    return resolved


def wrong(*args: Any, **more: Any) -> list[FieldError]:
    resolved = world(*args, **more)
    assert isinstance(resolved, list), resolved
    return resolved


def test_defaults_are_in_place_and_decimal_strings_are_numbers() -> None:
    job = right()
    assert (job.name, job.namespace, job.uid, job.trainers, job.min_trainers, job.loaders) == (
        "demo",
        "default",
        "uid-1",
        4,
        2,
        1,
    )
    assert (job.optimizer.learning_rate, job.optimizer.weight_decay, job.optimizer.gradient_clip) == (3e-4, 0.1, 1.0)
    assert (job.stop_steps, job.stop_tokens, job.total_steps) == (100, 0, 100)
    assert (job.parallelism.tokens_per_replica, job.parallelism.max_degree, job.parallelism.balance) == (
        1024,
        64,
        "Makespan",
    )
    assert job.checkpoint.every_steps == 100


@pytest.mark.parametrize(("copies", "kept"), [("None", False), ("EveryStep", True)])
def test_a_job_says_whether_its_devices_keep_copies(copies: str, kept: bool) -> None:
    assert right({"spec.recovery": {"copies": copies}}).copies is kept
    assert right().copies is False


def test_sources_and_checkpoints_name_buckets_as_their_endpoint_says() -> None:
    endpoint = {"url": "http://s3.test", "addressingStyle": "Virtual"}
    stored = {"spec.checkpoint.uri": "s3://runs/demo/", "spec.checkpoint.endpoint": endpoint}
    job = right(stored, sources=[sample("DataSource", {"spec.uri": "s3://corpus/", "spec.endpoint": endpoint})])
    styles = [each.endpoint.addressing_style for each in (job.checkpoint, *job.mix.sources)]
    assert styles == ["Virtual"] * 2
    assert right().checkpoint.endpoint.addressing_style == "Path"


def test_the_resolved_job_survives_its_config_map() -> None:
    job = right()
    assert msgspec.json.decode(msgspec.json.encode(job), type=JobConfig) == job


def test_a_preset_keeps_its_name_and_brings_its_shape() -> None:
    model = right({"spec.model.initFrom": {"uri": "s3://weights/"}}).model
    assert (model.preset, model.init_from) == ("llama-tiny", "s3://weights/")
    assert (model.layers, model.hidden) == (PRESETS["llama-tiny"].layers, PRESETS["llama-tiny"].hidden)


def test_a_model_without_preset_keeps_its_given_shape() -> None:
    model = right({"spec.model": {"config": {**SHAPE, "head": "Tied", "ropeTheta": 500_000, "vocabulary": 512}}}).model
    assert (model.preset, model.kv_heads, model.tied_head, model.rope_theta, model.vocabulary) == (
        "",
        2,
        True,
        5e5,
        512,
    )


def test_a_shape_of_another_family_keeps_its_own_fields() -> None:
    scaling = {"type": "Llama3", "factor": "8", "lowFreqFactor": "2", "originalMaxPositionEmbeddings": 4096}
    own = {"headSize": 64, "qkvBias": "Learned", "ropeScaling": scaling}
    model = right({"spec.model": {"config": {**SHAPE, **own}}}).model
    assert (model.head_size, model.qkv_bias, model.qk_norm) == (64, True, False)
    assert model.rope_scaling == RopeScaling(
        kind="Llama3", factor=8.0, low_frequency_factor=2.0, high_frequency_factor=4.0, original_context=4096
    )
    linear = {"config": {**SHAPE, "ropeScaling": {"type": "Linear", "factor": "2.5"}}}
    assert right({"spec.model": linear}).model.rope_scaling == RopeScaling(kind="Linear", factor=2.5)


CUSTOM = {"class": "my.gpt:GPT", "args": {"context": 512}, "layers": 2, "hidden": 128, "heads": 4, "feedForward": 512}


def test_a_model_of_ones_own_keeps_its_class_and_arguments_beside_its_shape() -> None:
    model = right({"spec.model": {"custom": CUSTOM}}).model
    assert model.custom == CustomModel(path="my.gpt:GPT", arguments={"context": 512})
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.feed_forward) == (2, 128, 4, 4, 512)


def test_a_model_of_ones_own_is_refused_where_the_policy_splits_it() -> None:
    faults = wrong({"spec.model": {"custom": CUSTOM}, "spec.parallelism": {"tensor": 2}, "spec.trainers": {"count": 8}})
    assert [fault.reason for fault in faults] == ["CustomModelNotSplit"]


def test_sources_are_sorted_by_their_name_in_the_mix() -> None:
    sources = [sample("DataSource", name=name) for name in ("docs", "code")]
    job = right(sources=sources, mixes=[sample("DataMix", {"spec.sources": TWO})])
    assert [(source.name, source.weight) for source in job.mix.sources] == [("code", 700), ("docs", 300)]


def test_phases_come_in_the_order_in_which_they_start() -> None:
    phases = [{**PHASE, "fromStep": 20}, {**PHASE, "fromStep": 10}]
    job = right(mixes=[sample("DataMix", {"spec.phases": phases})])
    assert [(phase.from_step, phase.from_tokens, phase.weights) for phase in job.mix.phases] == [
        (10, -1, {"code": 1}),
        (20, -1, {"code": 1}),
    ]


def test_a_phase_may_begin_at_a_number_of_tokens() -> None:
    phases = [{"fromTokens": 100, "weights": PHASE["weights"]}]
    [phase] = right(mixes=[sample("DataMix", {"spec.phases": phases})]).mix.phases
    assert (phase.from_step, phase.from_tokens) == (-1, 100)


def test_the_devices_of_a_replica_are_those_of_its_policy() -> None:
    policy = sample("ParallelismPolicy", {"spec.tensor": 2, "spec.pipeline": 4})
    found = right({**BY_REFERENCE, "spec.trainers.devicesPerTrainer": 8}, policies=[policy]).parallelism
    assert (found.tensor, found.pipeline) == (2, 4)


def test_a_mix_and_a_policy_in_line_need_no_other_object() -> None:
    mix = sample("DataMix")["spec"]
    job = right({"spec.mixRef": REMOVED, "spec.mix": mix}, mixes=[])
    assert (job.mix.name, job.mix.seed) == ("", 7)


def test_a_profile_of_a_claim_is_mounted_and_none_is_empty() -> None:
    job = right({"spec.parallelism.profile": {"uri": "pvc://profiles/h100.json"}})
    assert job.parallelism.profile == "file:///mnt/claims/profiles/h100.json"
    assert "profiles" in claims(job) and right({}).parallelism.profile == ""


def test_claims_become_folders_that_the_pods_mount() -> None:
    job = right(
        {"spec.checkpoint.uri": "pvc://runs/demo/"}, sources=[sample("DataSource", {"spec.uri": "pvc://corpus/code"})]
    )
    assert (job.checkpoint.uri, job.mix.sources[0].uri) == (
        "file:///mnt/claims/runs/demo/",
        "file:///mnt/claims/corpus/code",
    )
    assert claims(job) == ["corpus", "runs"]


def test_the_optimizer_keeps_its_schedule_floor_and_groups() -> None:
    optimizer = right({"spec.optimizer": {"learningRate": "1", "schedule": "WSD", "decaySteps": 9, "minimumRatio": "0",
                                          "groups": [{"match": "*.mlp.*", "learningRateScale": "0.5"}]}}).optimizer  # fmt: skip
    assert (optimizer.schedule, optimizer.decay_steps, optimizer.minimum_ratio) == ("WSD", 9, 0.0)
    assert optimizer.groups == (ParameterGroupConfig(match="*.mlp.*", learning_rate_scale=0.5),)


@pytest.mark.parametrize(
    ("globs", "wrong_at", "why"),
    [
        (["*.mlp.*", "lm_head.*"], 1, "matches no parameter of the model"),  # the head of this model is tied
        (["*.MLP.*"], 0, "matches no parameter of the model"),
        (["*.mlp.*", "*.mlp.up_proj.*"], 1, "matches only parameters that groups before it match"),
    ],
)
def test_a_group_that_decides_for_no_parameter_is_refused_with_names_that_exist(globs, wrong_at, why) -> None:
    (fault,) = wrong({"spec.optimizer.groups": [{"match": glob} for glob in globs]})
    assert (fault.path, fault.reason) == (f"spec.optimizer.groups[{wrong_at}].match", "GroupMatchesNothing")
    assert why in fault.message
    assert "model.embed_tokens.weight" in fault.way_out


def test_a_group_that_decides_for_no_parameter_is_a_fault_beside_those_of_other_objects() -> None:
    """So `cox validate` finds it, too, where a cluster has the mix."""
    faults = wrong({"spec.optimizer.groups": [{"match": "*.MLP.*"}], "spec.mixRef": {"name": "later"}})
    assert [fault.reason for fault in faults] == ["MixNotFound", "GroupMatchesNothing"]


@pytest.mark.parametrize(
    "policy",
    [{"tensor": 2}, {"layout": {"replicas": [{"stages": [{"layers": 4, "tensor": 2}]}]}}],
    ids=["degree", "layout"],
)
def test_muon_is_refused_where_a_tensor_group_splits_its_matrices(policy) -> None:
    base = {"spec.optimizer.kind": "Muon", "spec.trainers.devicesPerTrainer": 2}
    faults = wrong({**base, **{f"spec.parallelism.{name}": value for name, value in policy.items()}})
    (fault,) = [f for f in faults if f.reason == "MuonUnsupported"]
    assert (fault.path, fault.value, fault.allowed) == ("spec.optimizer.kind", "Muon", "AdamW")
    assert "degree of 2" in fault.message
    assert right(base).optimizer.kind == "Muon"


def test_a_missing_source_is_named() -> None:
    (fault,) = wrong(sources=[sample("DataSource", name="docs")])
    assert (fault.reason, fault.path, fault.value) == (
        "SourceNotFound",
        "DataMix/mix spec.sources[0].sourceRef.name",
        "code",
    )
    assert "docs" in fault.way_out


def test_a_missing_mix_and_a_missing_policy_are_both_named() -> None:
    faults = wrong(BY_REFERENCE, mixes=[])
    assert [(fault.reason, fault.value) for fault in faults] == [("MixNotFound", "mix"), ("PolicyNotFound", "policy")]
    assert all(fault.way_out.endswith("of this namespace: there is none") for fault in faults)


def test_sources_with_different_tokenizers_do_not_mix() -> None:
    other = {"file": {"uri": "s3://corpus/tokenizer.json"}}
    sources = [sample("DataSource"), sample("DataSource", {"spec.tokenizer": other}, name="docs")]
    (fault,) = wrong(sources=sources, mixes=[sample("DataMix", {"spec.sources": TWO})])
    assert fault.reason == "TokenizerMismatch"
    assert "code: bytes" in fault.message
    assert "docs: s3://corpus/tokenizer.json" in fault.message


def test_too_long_a_sequence_is_refused_with_the_numbers_and_the_way_out() -> None:
    (fault,) = wrong({**BY_REFERENCE, "spec.batch.maxSequenceTokens": 2049}, policies=[sample("ParallelismPolicy")])
    assert (fault.reason, fault.path, fault.allowed) == (
        "CapacityTooSmall",
        "spec.batch.maxSequenceTokens",
        "at most 2048",
    )
    for number in ("2049", "minCount", "1024", "64"):
        assert number in fault.message
    assert "tokensPerReplica" in fault.way_out


def test_an_object_of_a_wrong_shape_is_a_fault_and_no_crash() -> None:
    faults = wrong(mixes=[sample("DataMix", {"spec.sources": []})])
    assert [fault.path for fault in faults] == ["DataMix/mix spec.sources"]


@given(longest=st.integers(1, 8192), held=st.integers(1, 4096), degree=st.integers(1, 8), least=st.integers(1, 4),
       devices=st.integers(1, 4), pipeline=st.integers(1, 4))  # fmt: skip
def test_rule_and_resolve_agree_on_what_fits(
    longest: int, held: int, degree: int, least: int, devices: int, pipeline: int
) -> None:
    changes = {
        "spec.batch.maxSequenceTokens": longest,
        "spec.trainers": {"count": 4, "minCount": least, "devicesPerTrainer": devices},
        "spec.parallelism": {"pipeline": pipeline, "hybridData": {"tokensPerReplica": held, "maxDegree": degree}},
    }
    at_apply_time = [fault.path for fault in check(sample("TrainingJob", changes))]
    resolved = world(changes)
    assert (at_apply_time == []) == isinstance(resolved, JobConfig)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_the_rules_of_a_shape(name: str) -> None:
    shape = PRESETS[name]  # type: ignore[index]
    assert shape.head_size or shape.hidden % (2 * shape.heads) == 0
    assert shape.size_of_head % 2 == shape.heads % shape.kv_heads == 0


PUBLISHED = {
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248, "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512, "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
}  # fmt: skip


def test_a_preset_with_a_version_has_the_parameters_of_the_published_model() -> None:
    versions = {name: shape for name, shape in PRESETS.items() if shape.vocabulary}
    found = {name: sum(prod(spec.shape) for spec in parameter_specs(s, s.vocabulary)) for name, s in versions.items()}
    assert found == PUBLISHED


def test_a_tokenizer_file_keeps_its_end_of_text() -> None:
    tokenizer = {"file": {"uri": "pvc://corpus/tokenizer.json", "eos": "</s>"}}
    source = right(sources=[sample("DataSource", {"spec.tokenizer": tokenizer})]).mix.sources[0]
    assert (source.tokenizer.uri, source.tokenizer.eos) == ("file:///mnt/claims/corpus/tokenizer.json", "</s>")
