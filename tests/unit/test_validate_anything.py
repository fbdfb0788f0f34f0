"""Whatever stands in an object, the offline check answers with faults; it never breaks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from coxswain.api.kinds import BY_NAME
from coxswain.api.load import Document
from coxswain.api.resolve import resolve
from coxswain.api.validate import check, defaulted, validate
from coxswain.config import JobConfig
from tests.api_samples import PHASE, REMOVED, SHAPE, changed, sample
from tests.draws import draws

IN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e300, 1e300) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ODD = st.text(st.characters(), max_size=5) | st.integers() | st.floats() | st.booleans() | st.none() | st.dates()
ANYTHING = IN_JSON | st.recursive(
    ODD | st.binary(max_size=3) | st.datetimes() | st.sets(st.integers(), max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=5,
)
FULL = sample(
    "TrainingJob",
    {
        "spec.mix": {**sample("DataMix")["spec"], "phases": [PHASE]},
        "spec.model.config": SHAPE,
        "spec.failurePolicy.rules": [{"name": "a", "onExitCodes": {"operator": "In", "values": [1]}, "action": "Fail"}],
        "spec.checkpoint.endpoint": {"secretRef": {"name": "s3"}},
        "spec.scheduling.topology.required": "zone",
        "spec.trainers.template": {"nodeSelector": {"gpu": "a"}},
    },
)


def places(value: Any) -> list[tuple[str | int, ...]]:
    """The paths of everything in the value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((step, *rest) for step, member in steps for rest in places(member))]


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    result = value.copy()
    result[path[0]] = replaced(value[path[0]], path[1:], new)
    return result


RIGHT = changed(FULL, {"spec.mixRef": REMOVED, "spec.model.preset": REMOVED})
PLACES = [path for path in places(RIGHT) if path and path != ("kind",)]


@given(st.sampled_from(PLACES), ANYTHING)
@example(("apiVersion",), {-(2**63) - 1: None})
def test_any_value_anywhere_is_answered_with_words(path: tuple[str | int, ...], value: Any) -> None:
    manifest = replaced(FULL, path, value)
    for fault in [*check(manifest), *check(manifest, FULL), *validate([Document("job.yaml", 1, manifest)])]:
        assert fault.message
        json.dumps(fault.text)


@settings(max_examples=draws(30, 60))
@given(st.sampled_from(PLACES), IN_JSON)
def test_an_object_without_faults_resolves_or_is_refused_with_a_reason(path: tuple[str | int, ...], value: Any) -> None:
    manifest = replaced(RIGHT, path, value)
    if check(manifest) == []:
        answer = resolve(manifest, [sample("DataSource")], [], [], "uid")
        assert isinstance(answer, JobConfig) or all(fault.reason != "Invalid" for fault in answer)


@given(st.sampled_from(sorted(BY_NAME)))
def test_defaults_put_twice_change_nothing(kind: str) -> None:
    once = defaulted(sample(kind))
    assert defaulted(once) == once
    assert check(once) == []


def test_the_sample_of_these_tests_is_wrong_only_where_it_must_be() -> None:
    assert {fault.path for fault in check(FULL)} == {"spec", "spec.model"}  # both of two alternatives are given
    assert check(RIGHT) == []
