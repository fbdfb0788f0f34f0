"""Values that no JSON document can hold are refused by place and name, before any rule or schema sees them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from coxswain.api.field_errors import FieldError
from coxswain.api.json_values import check_values
from coxswain.api.load import load_documents
from coxswain.api.validate import check
from tests.api_samples import sample

KEY = "put the key in quotes"


def refused(value: Any) -> FieldError:
    """The one fault, which `check` reports alone, whatever else is wrong with the object."""
    manifest = {**sample("TrainingJob"), "metadata": {"name": "a", "labels": {"x": [0, value]}}, "unknown": 1}
    (fault,) = check(manifest)
    assert [fault] == list(check_values(manifest, {}))
    return fault


@pytest.mark.parametrize("key", [-(2**63) - 1, 2**64, 7, 1.5, True, None, b"x", (1, 2), datetime.date(2026, 1, 1)])
def test_a_key_that_is_no_string_is_refused_by_name(key: Any) -> None:
    fault = refused({"deep": {key: None}})
    assert fault.path == "metadata.labels.x[1].deep"
    assert fault.message == f"key {key!r} is not a string"
    assert (fault.value, fault.allowed, fault.way_out) == (repr(key), "a string", KEY)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1 << 20_000], ids=["large", "small", "huge"])
def test_a_whole_number_outside_64_bits_is_refused_with_the_bounds(value: int) -> None:
    fault = refused(value)
    assert fault.path == "metadata.labels.x[1]"
    assert "is out of bounds" in fault.message
    assert fault.allowed == "-9223372036854775808 to 9223372036854775807"
    assert fault.way_out == "write a number within the bounds"


@pytest.mark.parametrize("given", [2**63, -(2**63) - 1, 12345678901234567890123])
def test_a_whole_number_outside_64_bits_is_refused_with_the_bounds_of_its_field(given: int) -> None:
    job = sample("TrainingJob")
    job["spec"] |= {"batch": {**job["spec"]["batch"], "tokensPerStep": given}}
    (fault,) = check(job)
    assert fault.path == "spec.batch.tokensPerStep" and str(given) in fault.message
    assert fault.allowed == "1 to 1000000000"


@pytest.mark.parametrize("given", [2**63, -(2**63) - 1])
def test_a_whole_number_outside_64_bits_in_a_list_is_refused_with_the_bounds_of_its_field(given: int) -> None:
    mix = sample("DataMix")
    mix["spec"]["sources"][0] |= {"weight": given}
    (fault,) = check(mix)
    assert (fault.path, fault.allowed) == ("spec.sources[0].weight", "0 to 1000000")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    fault = refused(value)
    assert (fault.message, fault.allowed) == (f"{value!r} is not a finite number", "a finite number")


@pytest.mark.parametrize(
    "value",
    [b"x", {1}, (1, 2), datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), object],
)
def test_a_value_of_a_type_that_json_lacks_is_refused_by_its_type(value: Any) -> None:
    fault = refused(value)
    assert fault.message == f"a value of type {type(value).__name__} has no place in an object"
    assert fault.allowed == "a mapping, list, string, number, true, false or null"


@pytest.mark.parametrize("value", ["a\ud800b", {"a\ud800b": 1}])
def test_half_a_surrogate_pair_is_refused_and_printed_escaped(value: Any) -> None:
    fault = refused(value)
    assert (fault.value, fault.allowed) == ("a\\ud800b", "Unicode text")
    assert fault.way_out == "remove the half surrogate pair"
    assert fault.text.encode().isascii()


def test_the_largest_and_the_smallest_numbers_are_welcome() -> None:
    assert list(check_values({"a": [2**63 - 1, -(2**63), 1.7e308, -0.0, True, None, "ü"]}, {})) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-9223372036854775809: null", "key -9223372036854775809 is not a string"),
        ("yes: 1", "key True is not a string"),
        ("a: 9223372036854775808", "9223372036854775808 is out of bounds"),
        ("a: .nan", "nan is not a finite number"),
        ("a: 1e999", "inf is not a finite number"),
        ("a: !!timestamp 2026-01-01", "type date"),
        ("a: !!binary eA==", "type bytes"),
        ("a: !!set {x}", "type set"),
        ('a: "\\uD800"', "is not Unicode text"),
    ],
)
@pytest.mark.parametrize(
    "head", ["apiVersion: coxswain.dev/v1alpha1\nkind: DataMix", "apiVersion: v1\nkind: Secret", "kind: Unknown"]
)
def test_no_document_of_a_file_holds_what_json_cannot(tmp_path: Path, head: str, text: str, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{head}\nmetadata: {{name: a}}\nspec:\n  list:\n  - {text}\n")
    documents, (fault,) = load_documents([path])
    assert documents == []
    assert words in fault.message
    assert fault.path.startswith("spec.list[0]")
    assert (fault.file, fault.document) == (str(path), 1)


@pytest.mark.parametrize(
    "value", ["!!bool maybe", "!!timestamp soon", "!!int ''", "!!int word", "!!float " + "9:" * 300 + "1.5", "9" * 5000]
)
def test_a_word_that_contradicts_its_tag_is_malformed_yaml(tmp_path: Path, value: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"a: {value}\n")
    documents, (fault,) = load_documents([path])
    assert documents == []
    assert "malformed YAML" in fault.message
