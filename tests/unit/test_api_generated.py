"""Generated files are current, and the CRDs keep the conventions that no schema checks by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from coxswain.api.crd import crds, object_schema
from coxswain.api.generate import REPOSITORY, generated
from coxswain.api.kinds import BY_NAME, KINDS
from coxswain.api.pod_template import OWN
from coxswain.api.reference import example, page_name
from coxswain.api.rules import RULES
from coxswain.api.validate import check
from coxswain.metrics import METRICS

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
# The only boolean switches; everything else that has two states today is an enumeration and can get a third.
BOOLEANS = {"spec.suspend", "status.complete"}


METADATA = {f"spec.{field}.template.metadata{part}" for field in OWN for part in ("", ".labels", ".annotations")}


def test_every_generated_file_is_current() -> None:
    stale = [path for path, content in generated().items() if (REPOSITORY / path).read_text() != content]
    assert stale == [], "run `make generate`"


def test_no_text_in_a_crd_is_a_number_to_kubectl() -> None:
    """YAML 1.2 readers take an unquoted 1e-8 for a number, PyYAML takes it for a text."""
    crd_files = [content for path, content in generated().items() if path.startswith("crds/")]
    assert [
        line for content in crd_files for line in content.splitlines() if re.search(r": [-+]?[0-9.]+e[-+]?[0-9]", line)
    ] == []


def test_client_side_apply_can_annotate_every_crd() -> None:
    """kubectl stores the whole object in an annotation, and annotations have 256 KiB together."""
    assert [crd["metadata"]["name"] for crd in crds() if len(json.dumps(crd)) > 200 * 1024] == []


def test_no_stale_crd_lies_about() -> None:
    assert {f"crds/{file.name}" for file in (REPOSITORY / "crds").iterdir()} == {
        p for p in generated() if p.startswith("crds/")
    }


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below spec and status with its path."""
    for name, member in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        yield where, member
        if "x-kubernetes-preserve-unknown-fields" in member:  # a pod template, which is Kubernetes' own
            continue
        yield from walk(member, where)
        if "items" in member:
            yield f"{where}[]", member["items"]
            yield from walk(member["items"], f"{where}[]")


def fields(kind: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(path, member) for path, member in walk(object_schema(kind)) if path.startswith(("spec", "status"))]


@each_kind
def test_every_field_says_what_it_is(kind: Any) -> None:
    silent = [path for path, member in fields(kind) if not path.endswith("[]") and not member.get("description")]
    assert silent == []


@each_kind
def test_every_string_list_and_integer_is_bounded(kind: Any) -> None:
    bounds = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}
    loose = [
        path for path, m in fields(kind) if m.get("type") in bounds and bounds[m["type"]] not in m and "enum" not in m
    ]
    assert loose == []


@each_kind
def test_integers_fit_what_json_readers_keep(kind: Any) -> None:
    wide = [path for path, m in fields(kind) if m.get("type") == "integer" and not m["maximum"] < 2**53]
    assert wide == []


@each_kind
def test_there_are_no_floats_and_no_new_booleans(kind: Any) -> None:
    types = {(path, member.get("type")) for path, member in fields(kind)}
    assert {path for path, type_ in types if type_ == "number"} == set()
    assert {path for path, type_ in types if type_ == "boolean"} <= BOOLEANS


@each_kind
def test_names_are_camel_case_and_enumerations_are_pascal_case_words(kind: Any) -> None:
    names = [path.rsplit(".", 1)[-1].removesuffix("[]") for path, _ in fields(kind)]
    assert [name for name in names if not re.fullmatch(r"[a-z][a-zA-Z0-9]*", name)] == []
    words = [
        word for path, m in fields(kind) for word in m.get("enum", ()) if not path.endswith(("preset", "hardware"))
    ]
    assert [word for word in words if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", word)] == []


@each_kind
def test_lists_of_objects_say_how_they_merge(kind: Any) -> None:
    lists = [(path, m) for path, m in fields(kind) if m.get("type") == "array" and m["items"].get("type") == "object"]
    assert [path for path, m in lists if "x-kubernetes-list-type" not in m] == []


def test_schemas_are_structural() -> None:
    text = repr(crds())
    assert [
        word
        for word in ("$ref", "anyOf", "'additionalProperties': False", "exclusiveM", "'const'", "'title'")
        if word in text
    ] == []


def test_rules_have_unique_names_and_name_the_fix() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.name for rule in RULES if not rule.message or not rule.way_out] == []
    assert [rule.name for rule in RULES if "'" in rule.says + rule.way_out] == []  # it stands in quotes in CEL


def test_rules_stand_where_there_is_something_to_judge() -> None:
    for rule in RULES:
        for place in rule.places:
            kind, _, path = place.partition(":")
            known = {"", *METADATA, *(field for field, _ in fields(BY_NAME[kind]))}
            assert path in known, f"{rule.name}: {path}"
            assert rule.field.startswith(".metadata") or path + rule.field in known, f"{rule.name}: {path}{rule.field}"


@each_kind
def test_a_kinds_page_shows_an_object_of_it_that_has_no_fault(kind: Any) -> None:
    page = generated()[f"docs/reference/{kind.name.lower()}.md"]
    manifest = yaml.safe_load(page.partition("```yaml\n")[2].partition("\n```")[0])
    assert (manifest["kind"], check(manifest)) == (kind.name, [])


def test_a_kind_without_an_example_cannot_have_a_page() -> None:
    with pytest.raises(ValueError, match="no document of kind DataMix"):
        example(BY_NAME["DataMix"], "kind: Secret\n---\nkind: DataSource\n")


def test_the_index_leads_to_every_kinds_page() -> None:
    files = generated()
    assert [k.name for k in KINDS if f"({page_name(k)})" not in files["docs/reference/api.md"]] == []
    assert [k.name for k in KINDS if f"docs/reference/{page_name(k)}" not in files] == []


def test_the_metrics_page_names_every_metric() -> None:
    page = generated()["docs/metrics.md"]
    assert [metric.name for metric in METRICS if f"`{metric.name}`" not in page] == []
