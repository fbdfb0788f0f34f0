"""File URIs name folders with spaces, percent signs and letters of any language, encoded or not."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coxswain.api.load import load_documents
from coxswain.api.validate import check
from coxswain.config import EndpointConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.names import API_VERSION
from coxswain.uris import bucket_and_prefix, file_path, file_uri, folder_and_key
from coxswain_data.tokenizer import open_tokenizer
from coxswain_link.store import open_store
from tests.api_samples import sample

NAMES = ["my proj", "Über ñ 文", "100%", "a%20b", "x#y", "what?", "a+b&c=d;e", "quote'\"s", "%", "~home", "[1]*"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_under_a_uri_lies_in_that_folder_and_nowhere_else(tmp_path, name):
    folder = tmp_path / name
    for uri in (file_uri(folder), folder.as_uri()):
        open_store(uri, create=True).put("key", b"x")
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("key")] == [f"{name}/key"]
        assert open_store(uri).get("key") == b"x"


@given(st.text(st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1))
def test_a_path_comes_back_from_its_uri(name):
    path = Path("/folder") / name
    assert file_path(file_uri(path)) == path
    assert file_path(path.as_uri()) == path


@pytest.mark.parametrize("written", ["plain sp/", "plain%20sp/", "./plain sp/", "../{here}/plain sp/"])
@pytest.mark.parametrize("here", NAMES)
def test_a_relative_uri_is_of_the_folder_of_its_file_in_whatever_folder_that_is(tmp_path, here, written):
    uri = f"file:{written.format(here=here.replace('%', '%25'))}"
    file = tmp_path / here / "job.yaml"
    file.parent.mkdir()
    spec = {"uri": uri, "format": "Text", "tokenizer": {"bytes": {}}}
    source = {"apiVersion": API_VERSION, "kind": "DataSource", "metadata": {"name": "docs"}, "spec": spec}
    file.write_text(json.dumps(source))
    documents, faults = load_documents([file])
    assert not faults
    found = documents[0].manifest["spec"]["uri"]
    assert (file_path(found), found[-1]) == (tmp_path / here / "plain sp", "/")


@pytest.mark.parametrize(
    ("uri", "right"),
    [
        ("s3://", False), ("s3:///x", False), ("s3://my corpus/x", False), ("s3://ü/x", False), ("s3://b\n", False),
        ("s3://b", True), ("s3://arn:aws_1.x-y/a b", True), ("s3://b/a\0", False), ("gs://b/x", False),
        ("pvc://", False), ("pvc:///x", False), ("pvc://Claim/x", False), ("pvc://c-/x", False), ("pvc://c", True),
        ("pvc://c.d/x", True), ("pvc://c/a\0b", False), ("pvc://c/a%00b", False),
        ("file:///", True), ("file:///a\nb", True), ("file:///a\0b", False), ("file:///a%00b", False), ("file:///a%2500", True),
    ],
)  # fmt: skip
def test_a_uri_that_no_run_can_open_is_a_fault_of_its_field(uri, right):
    found = check(sample("DataSource", {"spec.uri": uri}))
    assert [fault.path for fault in found] == ([] if right else ["spec.uri"])
    assert all("write it in the allowed form" in fault.text or "%25" in fault.text for fault in found)


@given(path=st.text("/.ab\n\x1f\x7f", max_size=8))
@example(path="a//b")
@example(path="a/../b")
@example(path="//a//")
def test_a_path_in_a_bucket_is_a_fault_of_its_field_where_no_run_could_open_it(path):
    uri = f"s3://b/{path}"
    try:
        bucket_and_prefix(uri)
    except Refused:
        found = check(sample("DataSource", {"spec.uri": uri}))
        assert ["no part of a path in a bucket" in fault.text for fault in found] == [True]
    else:
        assert not check(sample("DataSource", {"spec.uri": uri}))


def test_an_object_has_a_folder_and_a_key_and_only_a_files_key_is_decoded():
    assert folder_and_key("file:///m%20y/tok%C3%BC.json") == ("file:///m%20y", "tokü.json")
    assert folder_and_key("s3://b/m%20y/t%20k.json") == ("s3://b/m%20y", "t%20k.json")


@pytest.mark.parametrize(
    ("uri", "parts"), [("s3://b/a#b/c?d", ("b", "a#b/c?d")), ("s3://b", ("b", "")), ("s3://b/p/", ("b", "p"))]
)
def test_a_bucket_and_its_prefix_are_taken_as_they_are(uri, parts):
    assert bucket_and_prefix(uri) == parts


NO_PATHS = ["a//b", "a/../b", "..", "./a", "a/.", "a\tb", "a/b\n", "a\x7f"]


@pytest.mark.parametrize("path", NO_PATHS)
def test_a_path_in_a_bucket_that_no_request_can_name_is_refused_and_never_an_error_of_obstore(path):
    with pytest.raises(
        Refused, match=r"^uri .*: no part of a path in a bucket may be empty, '\.' or '\.\.', or"
    ) as caught:
        open_store(f"s3://runs/{path}/", EndpointConfig(url="http://127.0.0.1:9"))
    assert caught.value.reason == "InvalidPath"


@pytest.mark.parametrize("name", ["..", ".", "a\tb.json"])
def test_a_key_in_a_bucket_that_no_request_can_name_is_refused(name):
    with pytest.raises(Refused, match=r"^uri .*: no part of a path in a bucket") as caught:
        open_tokenizer(TokenizerConfig(kind="file", uri=f"s3://runs/a/{name}"), EndpointConfig(), None)
    assert caught.value.reason == "InvalidPath"


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a b", ".a", "..a/b..", "...", "é%2F", "a\\b"])
def test_any_other_path_in_a_bucket_is_taken(path):
    open_store(f"s3://runs/{path}", EndpointConfig(url="http://127.0.0.1:9"))
