"""YAML comes in as Kubernetes would read it, and what is wrong with it is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from coxswain.api.field_errors import FieldError
from coxswain.api.load import MAX_BYTES, MAX_NODES, Document, load_documents, load_value
from coxswain.api.validate import validate

SOURCE = """\
apiVersion: coxswain.dev/v1alpha1
kind: DataSource
metadata: {name: code}
spec: {uri: "file:./corpus/", format: Parquet, tokenizer: {file: {uri: "file:../tokenizer.json"}}}
"""


def load(folder: Path, text: str) -> tuple[list[Document], list[FieldError]]:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_documents([path])


def refused(folder: Path, text: str) -> FieldError:
    documents, (fault,) = load(folder, text)
    assert documents == []
    return fault


def test_every_document_of_a_file_is_numbered_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    documents, faults = load(tmp_path, f"---\n{SOURCE}---\n---\n{SOURCE}")
    assert [document.number for document in documents] == [1, 3]
    assert faults == []


def as_list(kind: str, *texts: str) -> str:
    """As `kubectl get --output yaml` writes several objects."""
    items = [yaml.safe_load(text) for text in texts]
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": ""}, "items": items})


@pytest.mark.parametrize("indent", [None, 2, "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("between", ["\n", "", "\n---\n"])
def test_objects_of_json_are_taken_as_programs_write_them(tmp_path: Path, indent: Any, mark: str, between: str) -> None:
    """Between `---` or nothing, by tabs, and with a letter beyond 16 bits in two halves, which YAML does not put together."""
    value = {**yaml.safe_load(SOURCE), "x": "\U0001f600"}
    text = between.join(json.dumps({**value, "y": y}, indent=indent) for y in (1, 2))
    documents, faults = load(tmp_path, mark + text)
    assert faults == []
    assert [(d.number, d.manifest["y"], d.manifest["x"]) for d in documents] == [
        (1, 1, "\U0001f600"),
        (2, 2, "\U0001f600"),
    ]


def test_a_list_of_json_has_its_items_and_yaml_in_braces_is_yaml(tmp_path: Path) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(SOURCE)]}
    assert [d.identity[2] for d in load(tmp_path, json.dumps(items, indent="\t"))[0]] == ["code"]
    braces = "{apiVersion: coxswain.dev/v1alpha1, kind: DataMix, x: 3e-4}\n---\n{kind: DataMix,"
    (document,), (fault,) = load(tmp_path, braces)
    assert (document.manifest["x"], fault.document) == (3e-4, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"kind": "DataMix", "a": {"b": 1, "b": 2}}', "key 'b' appears twice"),
        ('{"kind":' + '{"a":' * 2000 + "1" + "}" * 2001, "nested too deeply"),
        ('{"kind": "DataMix", "a": "\\ud83d"}', "is not Unicode text"),
        ('{"kind": "DataMix", "a": NaN}', "nan is not a finite number"),
    ],
)
def test_json_that_no_cluster_takes_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text).message


@pytest.mark.parametrize("kind", ["List", "DataSourceList"])
def test_items_of_a_list_are_objects_as_kubectl_takes_them(tmp_path: Path, kind: str) -> None:
    documents, faults = load(tmp_path, as_list(kind, SOURCE, SOURCE.replace("name: code", "name: docs")))
    assert faults == []
    assert [(d.number, d.identity[2], d.manifest["spec"]["uri"]) for d in documents] == [
        (1, "code", f"file://{tmp_path}/corpus/"),
        (2, "docs", f"file://{tmp_path}/corpus/"),
    ]


def test_a_fault_of_an_item_has_the_items_number(tmp_path: Path) -> None:
    documents, (fault,) = load(tmp_path, as_list("List", SOURCE, SOURCE.replace("DataSource", "DataSauce")))
    assert ([d.number for d in documents], fault.document, fault.path) == ([1], 2, "kind")


def test_an_empty_list_holds_no_object_and_a_list_in_a_list_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, "apiVersion: v1\nkind: List\nitems:\n") == ([], [])
    (document,), _ = load(tmp_path, f"apiVersion: v1\nkind: List\nitems: []\n---\n{SOURCE}")
    assert document.number == 2  # the list is the first
    assert "unknown kind 'List'" in refused(tmp_path, as_list("List", as_list("List", SOURCE))).text
    assert "unknown kind 'List'" in refused(tmp_path, "apiVersion: v1\nkind: List\nitems: none\n").text


def test_relative_uris_start_at_the_folder_of_their_file(tmp_path: Path) -> None:
    (document,), _ = load(tmp_path, SOURCE)
    spec = document.manifest["spec"]
    assert spec["uri"] == f"file://{tmp_path}/corpus/"
    assert spec["tokenizer"]["file"]["uri"] == f"file://{tmp_path.parent}/tokenizer.json"


@pytest.mark.parametrize("uri", ["file:circle", "file:circle/in", "file:" + "x" * 5000])
def test_a_relative_uri_of_no_folder_that_could_be_is_one_of_its_files_folder(tmp_path: Path, uri: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (document,), faults = load(tmp_path, SOURCE.replace("file:./corpus/", uri))
    assert (document.manifest["spec"]["uri"], faults) == (uri.replace("file:", f"file://{tmp_path}/"), [])


@pytest.mark.parametrize("uri", ["file:a%00b", r"file:a\0b"])
def test_a_relative_uri_with_a_nul_stays_and_is_refused_for_its_form(tmp_path: Path, uri: str) -> None:
    documents, faults = load(tmp_path, SOURCE.replace("file:./corpus/", uri))
    (fault,) = [fault for fault in validate(documents) if fault.path == "spec.uri"]
    assert faults == [] and "file:///path" in fault.allowed


@pytest.mark.parametrize(("word", "found"), [("1e3", "1000"), ("6.0", "6"), ("6.5", "6.5"), ("6", "6")])
def test_a_whole_number_may_be_written_with_a_point_or_an_exponent_as_for_kubectl(
    tmp_path: Path, word: str, found: str
) -> None:
    (document,), _ = load(tmp_path, SOURCE.replace("spec: {", f"spec: {{maxRejected: {word}, "))
    assert repr(document.manifest["spec"]["maxRejected"]) == found
    assert [fault.path for fault in validate([document])] == ["spec.maxRejected"] * (word == "6.5")


def test_a_number_of_no_integers_place_stays_as_it_is_written(tmp_path: Path) -> None:
    """Such as an argument of a model of the user's own: a checkpoint knows it by its digits."""
    job = "apiVersion: coxswain.dev/v1alpha1\nkind: TrainingJob\nspec: {model: {custom: {args: {a: 2.0}}}}\n"
    (document,), _ = load(tmp_path, job)
    assert repr(document.manifest["spec"]["model"]["custom"]["args"]) == "{'a': 2.0}"


def test_absolute_uris_stay_as_they_are(tmp_path: Path) -> None:
    (document,), _ = load(tmp_path, SOURCE.replace("file:./corpus/", "file:///data/corpus"))
    assert document.manifest["spec"]["uri"] == "file:///data/corpus"


def test_malformed_yaml_is_refused_with_line_and_column(tmp_path: Path) -> None:
    fault = refused(tmp_path, "kind: DataMix\nspec: {seed: 7\nmetadata: {}\n")
    assert "malformed YAML at line 3, column 9" in fault.message
    assert (fault.file, fault.document, fault.way_out) == (str(tmp_path / "job.yaml"), 1, "correct the YAML")


def test_documents_before_a_malformed_one_are_kept(tmp_path: Path) -> None:
    documents, (fault,) = load(tmp_path, f"{SOURCE}---\nspec: [\n")
    assert len(documents) == 1
    assert fault.document == 2


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    fault = refused(tmp_path, SOURCE + "kind: DataMix\n")
    assert "key 'kind' appears twice" in fault.message
    assert "line 5, column 1" in fault.message


def test_a_tag_that_would_run_code_is_refused(tmp_path: Path) -> None:
    assert "malformed YAML" in refused(tmp_path, "!!python/object/apply:os.getcwd []\n").message


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("kind: DataSorce\n", "kind", "DataSource, DataMix"),
        ("apiVersion: coxswain.dev/v1\nkind: DataMix\n", "apiVersion", "coxswain.dev/v1alpha1"),
        ("- a\n- b\n", "", "a mapping"),
        *((text, "kind", "TrainingJob") for text in ("{}\n", "---\n{}\n")),
        *((text, "", "a mapping") for text in ("0\n", "false\n", "[]\n", "''\n")),
        ("apiVersion: v1\nkind: Pod\n", "kind", "TrainingJob"),
    ],
)
def test_what_is_no_object_of_ours_is_refused_with_what_is_allowed(
    tmp_path: Path, text: str, path: str, words: str
) -> None:
    fault = refused(tmp_path, text)
    assert fault.path == path
    assert words in fault.allowed


def test_secrets_of_endpoints_may_lie_in_the_same_file(tmp_path: Path) -> None:
    documents, faults = load(tmp_path, "apiVersion: v1\nkind: Secret\nmetadata: {name: s3}\n")
    assert [document.identity for document in documents] == [("Secret", "default", "s3")]
    assert faults == []


def test_an_unquoted_rate_is_a_number_as_it_is_for_kubectl(tmp_path: Path) -> None:
    text = "x: {rate: 3e-4, large: +2E3, less: -1.5e+1, date: 2026-11-21, word: None, name: 3e, port: 1e2e3}\n"
    (document,), _ = load(tmp_path, SOURCE + text)
    numbers = {"rate": 3e-4, "large": 2000.0, "less": -15.0}
    assert document.manifest["x"] == numbers | {"date": "2026-11-21", "word": "None", "name": "3e", "port": "1e2e3"}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("1:30 -1:30:00 1:30.5 0_1x 1e400x 2026-11-21 None =", str),
        ("y Y yes YES on On true TRUE", True),
        ("n N no NO off Off false FALSE", False),
        ("8 +8 010 0o10 0b1000 0x8 0_8 08 8. 8.0 0.8e1 .8E+1 80e-1", 8),
        ("-.5 -5e-1 -0.5", -0.5),
        ("~ null NULL", None),
    ],
)
def test_a_word_means_what_it_means_for_kubectl(words: str, value: Any) -> None:
    """As sigs.k8s.io/yaml 1.6 printed them as JSON, in which 8.0 is 8."""
    for word in words.split():
        found = load_value(f"a: {word}")["a"]
        assert found == (word if value is str else value), word
        assert isinstance(found, bool) == isinstance(value, bool), word


def test_an_unreadable_file_is_a_fault_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "large.yaml").write_text("#" * (MAX_BYTES + 1))
    (tmp_path / "right.yaml").write_text(SOURCE)
    documents, faults = load_documents(
        [tmp_path / n for n in ("absent.yaml", "latin.yaml", "large.yaml", "right.yaml")]
    )
    assert len(documents) == 1
    assert [fault.message.split(":")[-1].strip() for fault in faults] == [
        "No such file or directory", "it is not UTF-8 text", "the file is too large",
    ]  # fmt: skip


def test_a_file_may_have_three_million_bytes(tmp_path: Path) -> None:
    object_ = json.dumps(yaml.safe_load(SOURCE))
    documents, faults = load(tmp_path, object_ + " " * (MAX_BYTES - len(object_)))
    assert (len(documents), faults) == (1, [])


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_document_may_have_just_so_many_values_with_shared_ones_counted_wherever_they_stand(
    tmp_path: Path, spare: int, fits: bool
) -> None:
    def count(value: Any) -> int:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(count, members))

    def text(further: int) -> str:
        """Nearly all of the values are the same four, and `further` ones stand alone."""
        many, more = ", ".join(["*x"] * 400), ", ".join(["*z"] * 60 + ["1"] * further)
        return f"{SOURCE}four: &x [1, {{a: 2}}]\nmany: &z [{many}]\nmore: [{more}]\n"

    documents, faults = load(tmp_path, text(MAX_NODES - spare - count(yaml.safe_load(text(0)))))
    assert len(documents) == fits
    message = "the document is too large with its aliases written out"
    assert [fault.message for fault in faults] == ([] if fits else [message])


def test_aliases_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join(9 * [f'*l{n - 1}'])}]" for n in range(1, 9))
    fault = refused(tmp_path, f"{SOURCE}l0: &l0 [x]\n{levels}\n")
    assert "too large with its aliases written out" in fault.message


def test_a_circle_of_aliases_is_refused(tmp_path: Path) -> None:
    assert "too large" in refused(tmp_path, f"{SOURCE}x: &x [*x]\n").message


def test_an_alias_for_what_several_objects_share_is_welcome(tmp_path: Path) -> None:
    (document,), faults = load(tmp_path, f"{SOURCE}x: &x [1]\nz: *x\n")
    assert (document.manifest["z"], faults) == ([1], [])


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        (SOURCE.replace("DataSource", "DataSauce"), "did you mean DataSource?"),
        (SOURCE.replace("DataSource", "TrainJob"), "did you mean TrainingJob?"),
        (SOURCE.replace("DataSource", "Pod"), "use one of the allowed values"),
        ("hello", "write these four"),
        ("a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefg", "bcdefgh", strict=True)
        ), "write it with fewer aliases"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_object_of_ours_is_refused_with_a_way_out_that_fits(
    tmp_path: Path, text: str, way_out: str
) -> None:
    assert refused(tmp_path, text).way_out == way_out


def test_a_hundred_lists_and_mappings_within_each_other_are_read_and_one_more_is_refused_where_it_is(
    tmp_path: Path,
) -> None:
    (document,), faults = load(tmp_path, f"{SOURCE}x: {'[' * 99}{']' * 99}")
    assert (faults, list(document.manifest)[-1]) == ([], "x")
    line = SOURCE.count("\n") + 1
    fault = refused(tmp_path, f"{SOURCE}x: {'[' * 100}{']' * 100}")
    assert f"at line {line}, column {len('x: ') + 100}: lists and mappings are nested too deeply" in fault.message


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    assert "at line 1, column 101: lists and mappings are nested too deeply" in refused(tmp_path, "[" * 300).message
