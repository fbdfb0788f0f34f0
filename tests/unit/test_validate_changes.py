"""Which fields of a running job, and of what it reads, may change: every field of the schemas is on one side or the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from coxswain.api.cel_rules import check_rules
from coxswain.api.crd import object_schema
from coxswain.api.effects import Effect, effects
from coxswain.api.kinds import BY_NAME
from coxswain.api.rules import RULES
from coxswain.api.validate import check, defaulted
from tests.api_samples import PHASE, REMOVED, SHAPE, Manifest, changed, sample

EFFECTS = {kind: dict(effects(BY_NAME[kind].spec, BY_NAME[kind].effect)) for kind in BY_NAME}
BY_TOKENS = {"fromTokens": 10, "weights": PHASE["weights"]}
RULES_OF_FAILURE = [
    {"name": "a", "onReasons": ["OOMKilled"], "action": "Fail"},
    {"name": "b", "onExitCodes": {"operator": "In", "values": [1]}, "action": "Fail"},
    {"name": "c", "onPodConditions": [{"type": "DisruptionTarget"}], "action": "Fail"},
    {"name": "d", "onNodeConditions": [{"type": "Ready", "status": "False"}], "action": "Fail"},
]
FULL_LAYOUT = {"replicas": [{"count": 2, "stages": [{"layers": 4, "tensor": 1}]}]}
GROUP = {"match": "*.mlp.*", "weightDecay": "0"}
# Objects that together have every field of their kind: two where fields exclude one another.
FULL: dict[str, tuple[Manifest, ...]] = {
    "TrainingJob": (
        {
            "spec.mixRef": REMOVED,
            "spec.mix": {**sample("DataMix")["spec"], "phases": [PHASE]},
            "spec.image": "train:1",
            "spec.data.loaders.max": 1,
            "spec.managedBy": "example.org/training",
            "spec.model.initFrom": {"uri": "s3://weights/"},
            "spec.checkpoint.endpoint": {"url": "http://s3", "secretRef": {"name": "s3"}},
            "spec.trainers.template": {"spec": {"nodeSelector": {"gpu": "a"}}},
            "spec.data.template": {"nodeSelector": {"gpu": "a"}},
            "spec.activeDeadlineSeconds": 60,
            "spec.ttlSecondsAfterFinished": 60,
            "spec.evaluation": {"everySteps": 10, "tokens": 1000},
            "spec.tracking": {"tensorboard": {"directory": "/tb"}, "wandb": {"project": "p", "entity": "e"}},
            "spec.optimizer": {"learningRate": "3e-4", "schedule": "WSD", "decaySteps": 5, "groups": [GROUP]},
            "spec.failurePolicy.rules": RULES_OF_FAILURE,
        },
        {
            "spec.model": {"config": {**SHAPE, "ropeScaling": {"type": "Llama3", "factor": "8"}}},
            "spec.parallelism": REMOVED,
            "spec.parallelismRef": {"name": "policy"},
            "spec.stop": {"tokens": 1000},
        },
        {
            "spec.mixRef": REMOVED,
            "spec.mix": {**sample("DataMix")["spec"], "phases": [BY_TOKENS]},
            "spec.parallelism.layout": FULL_LAYOUT,
            "spec.parallelism.profile": {"uri": "s3://profiles/h100.json"},
        },
        {
            "spec.model": {
                "custom": {
                    "class": "a:B",
                    "args": {"context": 64},
                    "layers": 2,
                    "hidden": 8,
                    "heads": 2,
                    "feedForward": 8,
                }
            },
        },
    ),
    "DataMix": ({"spec.phases": [PHASE]}, {"spec.phases": [BY_TOKENS]}),
    "DataSource": (
        {
            "spec.endpoint": {"url": "http://s3", "secretRef": {"name": "s3"}},
            "spec.tokenizer": {"file": {"uri": "s3://corpus/tokenizer.json"}},
        },
    ),
    "NodeQuarantine": ({"spec.until": "2027-01-31T12:00:00Z", "spec.nodeUid": "0ea9"},),
    "ParallelismPolicy": ({"spec.profile": {"uri": "s3://profiles/h100.json"}}, {"spec.layout": FULL_LAYOUT}),
}
TRANSITIONS = {rule.message for rule in RULES if rule.is_transition}


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, member in steps:
        yield from leaves(member, (*path, step))
    if not isinstance(value, (dict, list)):
        yield path, value


def another(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}1"


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    result = value.copy()
    result[path[0]] = put(value[path[0]], path[1:], new)
    return result


def spelt(path: tuple[str | int, ...]) -> str:
    return "".join("[]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def effect_of(kind: str, path: str) -> Effect | None:
    """By the nearest field above that the models know: a template's own fields are Kubernetes'."""
    while path not in EFFECTS[kind]:
        path = path.rpartition(".")[0]
    return EFFECTS[kind][path]


def fields(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What can be changed: every path below which the schema knows no further fields. An empty object has none."""
    if "x-kubernetes-preserve-unknown-fields" in schema:  # a pod template changes as a whole
        yield path
        return
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    for name, member in schema.get("properties", {}).items():
        yield from fields(member, f"{path}.{name}".removeprefix("."))
    if schema["type"] not in ("array", "object"):
        yield path


@pytest.mark.parametrize(("kind", "changes"), [(kind, changes) for kind in FULL for changes in FULL[kind]])
def test_every_field_either_changes_while_the_job_runs_or_is_refused(kind: str, changes: Manifest) -> None:
    old = defaulted(sample(kind, changes))
    wrong = []
    for path, value in leaves(old["spec"]):
        new = {**old, "spec": put(old["spec"], path, another(value))}
        refused = any(fault.message in TRANSITIONS for fault in check_rules(kind, new, old, well_shaped=False))
        if refused != (effect_of(kind, spelt(path)) in (Effect.NEVER, Effect.SUSPENDED)):
            wrong.append((spelt(path), refused))
    assert wrong == []


@pytest.mark.parametrize("kind", FULL)
def test_no_field_of_the_schema_is_missing_from_the_samples_that_are_changed(kind: str) -> None:
    samples = [defaulted(sample(kind, changes))["spec"] for changes in FULL[kind]]
    tried = {spelt(path) for spec in samples for path, _ in leaves(spec)}
    schema = object_schema(BY_NAME[kind])["properties"]["spec"]
    assert [f for f in fields(schema) if not any(re.match(rf"{re.escape(f)}($|[.\[])", t) for t in tried)] == []


@pytest.mark.parametrize("field", ["optimizer", "data", "scheduling", "parallelism", "image", "trainers"])
def test_a_suspended_job_takes_the_changes_that_a_running_one_refuses(field: str) -> None:
    new = changed(sample("TrainingJob"), CHANGES[field])
    assert check(new, sample("TrainingJob")) != []
    suspended = {"spec.suspend": True}
    assert check(changed(new, suspended), sample("TrainingJob", suspended)) == []
    assert check(new, sample("TrainingJob", suspended)) == []  # also in the update that resumes it


CHANGES: dict[str, dict[str, Any]] = {
    "optimizer": {"spec.optimizer.learningRate": "1e-4"},
    "data": {"spec.data.loaders": {"min": 2, "max": 2}},
    "scheduling": {"spec.scheduling.priorityClassName": "high"},
    "parallelism": {"spec.parallelism.hybridData.maxDegree": 8},
    "image": {"spec.image": "train:2"},
    "trainers": {"spec.trainers.devicesPerTrainer": 2},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.suspend": True},
        {"spec.stop": {"steps": 200}},
        {"spec.trainers.count": 8},
        {"spec.failurePolicy": {"maxRestarts": 3}},
        {"spec.activeDeadlineSeconds": 60, "spec.startTimeoutSeconds": 60, "spec.ttlSecondsAfterFinished": 0},
    ],
)
def test_what_may_change_in_a_running_job_has_no_fault(changes: Manifest) -> None:
    assert check(sample("TrainingJob", changes), sample("TrainingJob")) == []


def test_a_suspended_job_keeps_the_kind_of_its_optimizer_whose_state_another_kind_cannot_use() -> None:
    muon = {"spec.optimizer.kind": "Muon"}
    new, suspended = (
        sample("TrainingJob", {**muon, "spec.suspend": True}),
        sample("TrainingJob", {"spec.suspend": True}),
    )
    assert [fault.path for fault in check(new, suspended)] == ["spec.optimizer.kind"]
    assert check(new, new) == []


def test_a_change_from_an_inline_mix_to_a_reference_is_refused() -> None:
    own = {"spec.mixRef": REMOVED, "spec.mix": sample("DataMix")["spec"]}
    assert [fault.path for fault in check(sample("TrainingJob"), sample("TrainingJob", own))] == ["spec.mixRef"]
