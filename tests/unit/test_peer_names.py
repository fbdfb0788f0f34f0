"""A field under the name that another system has for it is refused with the name of ours."""

from __future__ import annotations

import pytest

from coxswain.api.datamix import DataMixSpec
from coxswain.api.datasource import DataSourceSpec
from coxswain.api.field_errors import has_field, parse
from coxswain.api.peer_names import all_fields
from coxswain.api.trainingjob import TrainingJobSpec

KINDS = (TrainingJobSpec, DataSourceSpec, DataMixSpec)


def way_out(model: type, path: str, value: object = 1) -> str:
    *parents, name = path.split(".")
    tree: object = {name: value}
    for parent in reversed(parents):
        tree = {parent: tree}
    _, faults = parse(model, tree, "spec")
    return next(fault.way_out for fault in faults if fault.path == f"spec.{path}")


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("numNodes", "the field for it is spec.trainers.count"),
        ("replicas", "the field for it is spec.trainers.count"),
        ("max_steps", "the field for it is spec.stop.steps"),
        ("runPolicy", "did you mean failurePolicy?"),
        ("restartPolicy", "the field for it is spec.failurePolicy.rules"),
        ("epochs", "the field for it is spec.mix.sources[].maxPasses"),
        ("optimizer.lr", "did you mean learningRate?"),
        ("optimizer.max_norm", "did you mean gradientClip?"),
        ("batch.seq_len", "did you mean maxSequenceTokens?"),
        ("batch.global_batch_size", "did you mean tokensPerStep?"),
        ("parallelism.tensor_parallel_degree", "did you mean tensor?"),
        ("parallelism.context_parallel_degree", "the field for it is spec.parallelism.hybridData.maxDegree"),
        ("checkpoint.interval", "did you mean everySteps?"),
    ],
)
def test_a_job_with_a_peers_field_is_refused_with_the_name_of_ours(path: str, ours: str) -> None:
    assert way_out(TrainingJobSpec, path) == ours


def test_a_source_and_a_mix_are_refused_with_their_own_fields() -> None:
    assert way_out(DataSourceSpec, "remote") == "did you mean uri?"
    _, faults = parse(DataMixSpec, {"sources": [{"proportion": 1}]}, "spec")
    assert [f.way_out for f in faults if f.message == "unknown field"] == ["did you mean weight?"]


def test_a_misspelt_field_is_still_refused_with_the_nearest_one() -> None:
    assert way_out(TrainingJobSpec, "batch.tokenPerStep") == "did you mean tokensPerStep?"


@pytest.mark.parametrize("path", all_fields())
def test_each_field_that_the_table_offers_exists(path: str) -> None:
    assert any(has_field(model, path) for model in KINDS)
