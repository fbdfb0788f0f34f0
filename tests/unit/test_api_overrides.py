"""Fields of a job from the command line: in the API's own spelling, refused by name where there is no place."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coxswain.api.jobfiles import load_run
from coxswain.api.load import STDIN
from coxswain.api.overrides import overridden
from coxswain.errors import Refused
from tests.api_samples import sample


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("spec.stop.steps=100", ("spec", "stop", "steps"), 100),
        ("spec.optimizer.learningRate=3e-4", ("spec", "optimizer", "learningRate"), "3e-4"),
        ("spec.stop.steps=1e3", ("spec", "stop", "steps"), 1000),
        ("spec.stop={tokens: 5e6}", ("spec", "stop", "tokens"), 5_000_000),
        ("spec.suspend=true", ("spec", "suspend"), True),
        ("spec.checkpoint.uri=s3://b/a=b", ("spec", "checkpoint", "uri"), "s3://b/a=b"),
        ("spec.stop={steps: 7}", ("spec", "stop"), {"steps": 7}),
        ("metadata.labels.team=blue", ("metadata", "labels", "team"), "blue"),
        ("spec.trainers.template.hostNetwork=", ("spec", "trainers", "template", "hostNetwork"), None),
    ],
)
def test_a_setting_takes_its_place_with_the_type_that_the_api_wants(setting: str, path: Any, value: Any) -> None:
    before = sample("TrainingJob")
    found: Any = overridden(before, [setting])
    for name in path:
        found = found[name]
    assert repr(found) == repr(value)  # 1000 is no 1000.0
    assert before == sample("TrainingJob")


def test_an_item_of_a_list_is_named_by_its_number_and_the_last_setting_counts() -> None:
    job = {"spec": {"mix": {"sources": [{"weight": 1}, {"weight": 2}]}}}
    found = overridden(job, ["spec.mix.sources[1].weight=5", "spec.mix.sources[1].weight=6"])
    assert found["spec"]["mix"]["sources"] == [{"weight": 1}, {"weight": 6}]


def test_a_relative_uri_is_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = overridden(sample("TrainingJob"), ["spec.checkpoint.uri=file:my runs/"])
    assert found["spec"]["checkpoint"]["uri"] == f"file://{tmp_path}/my runs/"


@pytest.mark.parametrize("path", ["spec.evaluation.tokens", "metadata.labels.team", "spec.trainers.template.spec"])
def test_a_field_that_the_file_leaves_empty_has_a_place_for_its_members(path: str) -> None:
    """`labels:` without a value is null in YAML, and absent to an API server."""
    *parents, last = path.split(".")
    empty = sample("TrainingJob", {".".join(parents): None})
    found: Any = overridden(empty, [f"{path}=7"])
    for name in parents:
        found = found[name]
    assert found == {last: 7}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("spec.stop.steps", "has not the form FIELD=VALUE"),
        ("steps=7", "has not the form"),
        ("kind=Pod", "has not the form"),
        ("spec..x=1", "has not the form"),
        ("spec.stop=[", "its value is not YAML"),
        ("spec.stop=!!int x", "its value is not YAML"),
        ("spec.stop.steps.more=1", "there is no place for 'more'"),
        ("spec.failurePolicy.rules[0].name=a", "there is no place for 0"),
        ("spec.stop[0]=1", "there is no place for 0"),
    ],
)
def test_a_setting_without_a_form_or_a_place_is_refused_by_name(setting: str, words: str) -> None:
    job = {"spec": {"stop": {"steps": 1}, "failurePolicy": {"rules": []}}}
    with pytest.raises(Refused) as caught:
        overridden(job, [setting])
    assert caught.value.message.startswith(f"--set {setting}: ")
    assert words in caught.value.message


def test_standard_input_is_a_file_and_a_wrong_setting_is_a_fault_of_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("DataSource", "DataMix", "ParallelismPolicy", "TrainingJob")
    text = "\n---\n".join(json.dumps(sample(kind)) for kind in kinds)
    for settings, words in ((["spec.stop.steps=x"], "spec.stop.steps: 'x' is not a whole number"), ([], "")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        try:
            assert len(load_run([STDIN], settings)) == 4
        except Refused as refused:
            assert words
            assert words in refused.message
        else:
            assert not words
