"""Rules that hold on several conditions: each of these on its own, and both sides of each exemption."""

from __future__ import annotations

import pytest

from coxswain.api.cel_rules import check_rules
from coxswain.api.rules import Rule
from coxswain.api.validate import check, defaulted
from tests.api_samples import LAYOUT, PHASE, REMOVED, SHAPE, Manifest, sample

CODE, DOCS = ({"name": name, "sourceRef": {"name": name}, "weight": 1} for name in ("code", "docs"))
SOURCES = {"spec.sources": [CODE, DOCS]}
EVALUATED = {"spec.evaluation": {"everySteps": 5, "tokens": 100}}
OFTENER = {"spec.evaluation": {"everySteps": 4, "tokens": 100}}
SUSPENDED = {"spec.suspend": True}
IN_TWOS = {"spec.parallelism.tensor": 2, "spec.trainers.devicesPerTrainer": 2}
INLINE = {"spec.mixRef": REMOVED, "spec.mix": {"seed": 7, "sources": [CODE]}}
UNBOUNDED = {"spec.trainers": {"count": 4}}


def phases(*starts: Manifest) -> Manifest:
    return {"spec.phases": [{**start, "weights": PHASE["weights"]} for start in starts]}


def weighted(**weights: int) -> Manifest:
    """One phase with these weights, of a mix of code and docs."""
    listed = [{"name": name, "weight": weight} for name, weight in weights.items()]
    return {**SOURCES, "spec.phases": [{"fromStep": 10, "weights": listed}]}


def labelled(field: str, *keys: str) -> Manifest:
    return {f"spec.{field}.template": {"metadata": {"labels": dict.fromkeys(keys, "a")}}}


def shaped(**given: object) -> Manifest:
    return {"spec.model": {"config": {**SHAPE, **given}}}


def rope(**factors: str) -> Manifest:
    return shaped(ropeScaling={"type": "Llama3", "factor": "8", **factors})


def assert_faults(kind: str, new: Manifest, old: Manifest | None, path: str) -> None:
    """The only fault is at this path, for the rules alone too, as on a server; empty: there is none."""
    after, before = sample(kind, new), None if old is None else sample(kind, old)
    ruled = check_rules(kind, defaulted(after), before and defaulted(before), well_shaped=True)
    assert [fault.path for fault in check(after, before)] == [fault.path for fault in ruled] == [path] * bool(path)


@pytest.mark.parametrize(
    ("new", "old", "path"),
    [
        ({"spec.sources": [{**CODE, "weight": 0}, DOCS]}, None, ""),
        (phases({"fromTokens": 5}, {"fromTokens": 6}), None, ""),
        (phases({"fromTokens": 5}, {"fromTokens": 5}), None, "spec.phases"),
        ({"spec.sources": [DOCS, CODE]}, SOURCES, ""),
        ({"spec.sources": [CODE, {**DOCS, "sourceRef": {"name": "web"}}]}, SOURCES, "spec.sources"),
        ({"spec.sources": [CODE, {**DOCS, "name": "web"}]}, SOURCES, "spec.sources"),
        ({"spec.sources": [CODE, DOCS, {**DOCS, "name": "web"}]}, SOURCES, "spec.sources"),
        (weighted(code=1, books=1), None, "spec.phases"),
        (weighted(code=1, docs=1), None, ""),
        (weighted(code=0, docs=1), None, ""),
    ],
)
def test_each_clause_of_a_rule_of_mixes(new: Manifest, old: Manifest | None, path: str) -> None:
    assert_faults("DataMix", new, old, path)


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (rope(lowFreqFactor="0"), "spec.model.config.ropeScaling.lowFreqFactor"),
        (rope(lowFreqFactor="0.1"), ""),
        (rope(lowFreqFactor="5"), "spec.model.config.ropeScaling.lowFreqFactor"),
        (rope(factor="0.999"), "spec.model.config.ropeScaling.factor"),
        (rope(factor="1"), ""),
        *((shaped(**given), "") for given in ({"headSize": 10}, {"qkvBias": "Learned"}, {"qkNorm": "RMSNorm"})),
        ({"metadata.name": "a-9z0"}, ""),
        ({"spec.checkpoint.uri": "file:///a%0a%000"}, "spec.checkpoint.uri"),
        ({"spec.checkpoint.uri": "file:///a%0a"}, ""),
        ({"spec.scheduling.topology": {"preferred": "zone"}}, ""),
        ({"spec.scheduling.topology": {"required": "zone"}}, ""),
        (
            {
                "spec.stop": {"tokens": 100},
                "spec.optimizer": {"learningRate": "1", "schedule": "WSD", "decaySteps": 10**9},
            },
            "",
        ),
        *(({f"spec.optimizer.{beta}": "0.9999"}, "") for beta in ("beta1", "beta2", "momentum")),
        *(({f"spec.optimizer.{beta}": "1"}, f"spec.optimizer.{beta}") for beta in ("beta1", "beta2", "momentum")),
        ({"spec.optimizer.epsilon": "1e-30"}, ""),
        ({"spec.optimizer.epsilon": "9e-31"}, "spec.optimizer.epsilon"),
        ({"spec.stragglers": {"action": "None", "thresholdPercent": 20}}, "spec.stragglers"),
        ({"spec.stragglers": {"action": "None", "thresholdPercent": 5}}, "spec.stragglers"),
        ({"spec.stragglers": {"action": "None", "windowSteps": 2}}, "spec.stragglers"),
        ({"spec.stragglers": {"action": "None"}}, ""),
        ({"spec.data.template": {"metadata": {"labels": {"coxswain.development/a": "b"}}}}, ""),
        *(
            (labelled(field, *keys), f"spec.{field}.template.metadata.labels")
            for field in ("trainers", "data")
            for keys in (("team", "coxswain.dev/role"), ("coxswain.dev/role", "coxswain.dev/index"))
        ),
        (
            {"spec.data.template": {"metadata": {"annotations": {"coxswain.dev/a": "b"}}}},
            "spec.data.template.metadata.annotations",
        ),
        ({"spec.scheduling.queueing": {"queueName": "research"}}, "spec.scheduling.queueing.queueName"),
        ({"spec.parallelism.mode": "Auto", "spec.parallelism.layout": LAYOUT}, "spec.parallelism.mode"),
        ({"spec.parallelism.mode": "Auto", **IN_TWOS}, "spec.parallelism.mode"),
        ({"spec.parallelism": {"layout": LAYOUT, "tensor": 2, "hybridData": {}}}, "spec.parallelism.layout"),
        ({"spec.parallelism.hybridData": {"tokensPerReplica": 2047, "maxDegree": 1}}, "spec.batch.maxSequenceTokens"),
        ({"spec.parallelism.hybridData": {"tokensPerReplica": 2048, "maxDegree": 1}}, ""),
        ({"spec.batch.maxSequenceTokens": 4096, **UNBOUNDED}, ""),
        ({"spec.failurePolicy.rules": [{"name": "a", "action": "Fail", "onNodeConditions": [{"type": "Ready"}]}]}, ""),
    ],
)
def test_each_clause_of_a_rule_of_jobs(new: Manifest, path: str) -> None:
    assert_faults("TrainingJob", new, None, path)


@pytest.mark.parametrize(
    ("new", "old", "path"),
    [
        ({"spec.stop": {"tokens": 100}}, {"spec.stop": {"tokens": 100}}, ""),
        ({"spec.stop": {"tokens": 101}}, {"spec.stop": {"tokens": 100}}, ""),
        ({"spec.stop": {"tokens": 99}}, {"spec.stop": {"tokens": 100}}, "spec.stop"),
        ({"spec.stop": {"tokens": 10**9}}, {"spec.stop": {"steps": 100}}, "spec.stop"),
        ({"spec.stop": {"steps": 10**9}}, {"spec.stop": {"tokens": 100}}, "spec.stop"),
        ({"spec.trainers": {"count": 5}}, {**UNBOUNDED, **SUSPENDED}, ""),
        ({"spec.trainers": {"count": 5}, **SUSPENDED}, UNBOUNDED, "spec.trainers.count"),
        (
            {"spec.trainers": {"count": 5, "minCount": 2}},
            {"spec.trainers": {"count": 4, "minCount": 2}},
            "spec.trainers.count",
        ),
        (
            {"spec.trainers": {"count": 5, "maxCount": 8}},
            {"spec.trainers": {"count": 4, "maxCount": 8}},
            "spec.trainers.count",
        ),
        ({"spec.trainers": {"count": 3}}, UNBOUNDED, "spec.trainers.count"),
        ({"spec.trainers.count": 5}, {}, ""),
        ({"spec.trainers": {"count": 4, "maxCount": 8}}, {}, "spec.trainers.minCount"),
        ({}, {"spec.trainers": {"count": 4, "maxCount": 8}}, "spec.trainers.minCount"),
        ({"spec.managedBy": "example.org/a"}, {}, "spec.managedBy"),
        ({}, {"spec.managedBy": "example.org/a"}, "spec.managedBy"),
        (INLINE, {}, "spec.mixRef"),
        ({}, INLINE, "spec.mixRef"),
        ({"spec.image": "train:2", **SUSPENDED}, {}, "spec.image"),
        ({"spec.image": "train:2"}, SUSPENDED, ""),
        (EVALUATED, {}, "spec.evaluation"),
        ({}, EVALUATED, "spec.evaluation"),
        (EVALUATED, SUSPENDED, "spec.evaluation"),
        ({"spec.evaluation": {"everySteps": 5, "tokens": 99}}, EVALUATED, "spec.evaluation"),
        ({**OFTENER, **SUSPENDED}, EVALUATED, "spec.evaluation.everySteps"),
        (OFTENER, {**EVALUATED, **SUSPENDED}, ""),
    ],
)
def test_each_clause_of_a_rule_of_changed_jobs(new: Manifest, old: Manifest, path: str) -> None:
    """What is exempt is the update of a job that was suspended before it, not the one that suspends it."""
    assert_faults("TrainingJob", new, old, path)


@pytest.mark.parametrize("expression", ["self.none > 1", "1 % 0 == 0"])
def test_a_rule_that_cannot_be_judged_is_an_error_where_the_shape_is_right_and_left_out_where_it_is_not(
    expression: str,
) -> None:
    rules = (Rule("broken", ("DataMix:spec",), expression, "", ""),)
    assert check_rules("DataMix", sample("DataMix"), None, well_shaped=False, rules=rules) == []
    with pytest.raises((RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)):
        check_rules("DataMix", sample("DataMix"), None, well_shaped=True, rules=rules)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.checkpoint.everySteps", 0),
        ("spec.parallelism.tensor", 0),
        ("spec.parallelism.pipeline", 0),
        ("spec.parallelism.hybridData.tokensPerReplica", 0),
        ("spec.parallelism.hybridData.maxDegree", 0),
        ("spec.parallelism", 5),
        ("spec.model.config.heads", 0),
        ("spec.model.config.kvHeads", 0),
        ("spec.trainers.count", 0),
        ("spec.trainers.minCount", 0),
        ("spec.trainers.devicesPerTrainer", 0),
        ("spec.batch.tokensPerStep", 0),
        ("spec.batch.tokensPerStep", 1.5),
        ("spec.optimizer.learningRate", "-1"),
    ],
)
def test_a_value_that_its_field_refuses_is_the_only_fault_though_rules_divide_by_it_or_compare_it(
    path: str, value: object
) -> None:
    right = {"spec.model": {"config": SHAPE}}
    assert check(sample("TrainingJob", right)) == []
    assert [fault.path for fault in check(sample("TrainingJob", {**right, path: value}))] == [path]


def test_a_rule_that_asks_only_whether_a_field_is_given_judges_a_field_that_is_given_wrongly() -> None:
    job = sample("TrainingJob", {"spec.stop": {"steps": 0, "tokens": 5}})
    assert [fault.path for fault in check(job)] == ["spec.stop.steps", "spec.stop"]


def test_an_unknown_field_beside_what_a_rule_reads_hides_no_fault_of_the_rule() -> None:
    job = sample("TrainingJob", {"spec.trainers.cuont": 9, "spec.trainers.count": 9})
    assert [fault.path for fault in check(job)] == ["spec.trainers.cuont", "spec.trainers.count"]
