"""The object store over files; the same claims on S3 are in tests/integration."""

import errno
import os
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_link.s3 import find_access, open_s3
from coxswain_link.store import BucketNotFound, Denied, NotFound, ObjectChanged, StoreUnavailable, open_store
from coxswain_link.store_faults import translated
from tests.http_servers import served


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/new/folder", create=True)


def test_what_was_put_is_read_whole_and_in_parts(store):
    store.put("a/b", b"0123456789")
    assert store.get("a/b") == b"0123456789"
    assert store.get_range("a/b", 2, 5) == b"234"
    assert store.get_range("a/b", 4, 4) == b""


@pytest.mark.parametrize("stop", [2, 3, 5, 6, 8, 10])
def test_a_range_of_several_pieces_is_joined(store, stop):
    store.put("a/b", b"0123456789")
    assert store.get_range("a/b", 2, stop, piece_bytes=3) == b"0123456789"[2:stop]


def test_a_key_is_claimed_once(store):
    assert store.create("claim", b"mine")
    assert not store.create("claim", b"theirs")
    assert store.get("claim") == b"mine"


def test_a_claim_repeated_with_the_same_content_is_still_ours(store):
    assert store.create("claim", b"mine")
    assert store.create("claim", b"mine")


def test_of_many_claims_at_once_exactly_one_wins(store):
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: store.create("claim", b"%d" % i), range(16)))
    assert won.count(True) == 1
    assert store.get("claim") == b"%d" % won.index(True)


def test_listing_is_sorted_and_relative_to_the_prefix_given(store):
    for key in ("x/2", "x/10", "y"):
        store.put(key, b"..")
    assert [o.path for o in store.list("x")] == ["x/10", "x/2"]
    assert [o.size for o in store.list()] == [2, 2, 2]


def test_an_absent_object_is_named(store):
    with pytest.raises(NotFound, match="new/folder/nothing does not exist"):
        store.get("nothing")
    store.delete("nothing")


@pytest.mark.parametrize("key", ["x" * 256, "é" * 128, f"{'x' * 256}/y"])
def test_an_object_whose_name_no_file_system_takes_does_not_exist_and_is_not_waited_for(store, key):
    for look in (store.get, store.head, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(NotFound, match="does not exist"):
            look(key)
    assert not store.exists(key)


def test_an_absent_source_folder_is_named(tmp_path):
    with pytest.raises(NotFound, match="does not exist or is not a folder"):
        open_store(f"file://{tmp_path}/absent")


def test_another_scheme_is_refused_with_the_ones_allowed():
    with pytest.raises(Refused, match="allowed are s3://bucket/prefix and file:///folder"):
        open_store("gs://bucket")


def test_changed_content_has_another_etag(store):
    store.put("k", b"one")
    before = store.head("k").etag
    store.put("k", b"two!")
    assert store.head("k").etag != before


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "No space left on device; make room there"),
        (errno.EDQUOT, "Disk quota exceeded; make room there, or raise the quota"),
        (errno.EFBIG, "File too large; raise the limit of a file's size (ulimit -f)"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_takes_no_more_is_named_with_the_way_out_and_without_the_staged_file(code, says):
    error = OSError(code, os.strerror(code), "/runs/x#4711")
    found = translated(error, "file:///runs/x", "")
    assert isinstance(found, StoreUnavailable)
    assert str(found) == f"file:///runs/x: {says}"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_finds_no_room_is_waited_for_and_not_refused(tmp_path, monkeypatch, code):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("coxswain_link.store.LocalStore", refuse)
    with pytest.raises(StoreUnavailable, match="make room there"):
        open_store(f"file://{tmp_path}/new", create=True)


def test_an_unreachable_server_is_named_by_the_same_text_at_each_attempt():
    words = (
        "Error performing GET http://h:1/k in 1.2s, after 2 retries, max_retries: 2, retry_timeout: 20s  - HTTP error"
    )
    assert str(translated(GenericError(f"Generic S3 error: {words}"), "s3://b/k", "of x")) == "s3://b/k: HTTP error"


def test_a_folder_that_cannot_be_opened_is_refused_by_its_uri(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(Refused, match=rf"file://{tmp_path}/{path} cannot be opened \(.*give the user of the job"):
            open_store(f"file://{tmp_path}/{path}", create=True)


@pytest.mark.parametrize(("credentials", "words"), [("", "permission denied; give"), ("of Secret a", "credentials of")])
def test_a_denied_file_is_not_said_to_have_credentials(credentials, words):
    found = translated(PermissionDeniedError("x"), "file:///runs/key", credentials)
    assert str(found).startswith("file:///runs/key: ")
    assert words in str(found)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": b"key"}, "AWS_SECRET_ACCESS_KEY is missing"),
        ({}, "AWS_ACCESS_KEY_ID is missing"),
        ({"AWS_ACCESS_KEY_ID": b"key", "AWS_SECRET_ACCESS_KEY": b"\xff"}, "one is no text"),
    ],
)
def test_a_secret_that_lacks_a_key_or_holds_no_text_is_refused_by_its_name(tmp_path, written, says):
    (tmp_path / "keys").mkdir()
    for name, content in written.items():
        (tmp_path / "keys" / name).write_bytes(content)
    with pytest.raises(Refused, match=f"secretRef 'keys': needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY .*{says}"):
        find_access(EndpointConfig(secret="keys"), tmp_path)()


REGIONS = [
    ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "", "eu-west-1"),
    ({"AWS_DEFAULT_REGION": "eu-west-2"}, "", "eu-west-2"),
    ({"AWS_CONFIG_FILE": "[default]\nregion = eu-west-3\n"}, "", "eu-west-3"),
    ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-north-1", "eu-north-1"),
    ({"AWS_PROFILE": "absent"}, "", "us-east-1"),
    ({}, "", "us-east-1"),
]


@pytest.mark.parametrize(("environment", "named", "region"), REGIONS)
def test_the_region_is_the_named_one_or_that_of_the_aws_command(tmp_path, monkeypatch, environment, named, region):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(environment.get("AWS_CONFIG_FILE", ""))
    for name, value in {**environment, "AWS_CONFIG_FILE": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    access = find_access(EndpointConfig(), None)
    assert open_s3("bucket", "", EndpointConfig(region=named), access).config["region"] == region


class Answer(BaseHTTPRequestHandler):
    """Answers every request alike."""

    status, body, asked = 200, b"", 0
    said: Mapping[str, str] = {}  # further headers

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        for header, value in self.said.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body if self.command != "HEAD" else b"")

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def answers():
    with served(ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Answer,), {}))) as server:
        yield server


ELSEWHERE = "the bucket is in another region than requests are signed for{}; set endpoint.region"
FAULTS = [
    (301, "<Code>PermanentRedirect</Code>", ELSEWHERE.format("")),
    (400, "<Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region>", ELSEWHERE.format(", eu-west-1")),
    (403, "<Code>InvalidObjectState</Code>", "it is archived; restore it to a storage class that can be read"),
]


@pytest.mark.parametrize("known", [False, True], ids=["at the first call", "where the location was used"])
@pytest.mark.parametrize(("status", "body", "words"), FAULTS, ids=["redirect", "signature", "archive"])
def test_what_waiting_cannot_mend_is_refused_at_once_with_what_would(tmp_path, answers, status, body, words, known):
    (tmp_path / "keys").mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / "keys" / name).write_text("key")
    answers.RequestHandlerClass.status = status
    answers.RequestHandlerClass.body = f"<?xml version='1.0'?><Error>{body}<Message>m</Message></Error>".encode()
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{answers.server_port}", region="eu-west-1", secret="keys")
    store = open_store("s3://bucket/p", endpoint, tmp_path, patience=60, known=known)
    with pytest.raises(Refused, match=f"s3://bucket/p/key: {words}"):
        store.get("key")
    assert answers.RequestHandlerClass.asked == 1


CALLS = {
    "get": lambda store: store.get("key"),
    "range": lambda store: store.get_range("key", 0, 5),
    "head": lambda store: store.head("key"),
    "exists": lambda store: store.exists("key"),
    "put": lambda store: store.put("key", b"x"),
    "create": lambda store: store.create("key", b"x"),
    "delete": lambda store: store.delete("key"),
}


@pytest.fixture
def behind(tmp_path, answers):
    """A store whose requests all get the answer of `answers`."""
    (tmp_path / "keys").mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / "keys" / name).write_text("value")
    answers.RequestHandlerClass.status = 404
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{answers.server_address[1]}", secret="keys")
    return open_store("s3://bucket/p", endpoint, tmp_path, patience=0.0)


@pytest.mark.parametrize("body", [b"", b"default backend - 404", b"<html><body>404 Not Found</body></html>"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_404_of_what_stands_before_the_server_says_nothing_about_an_object(answers, behind, call, body):
    """As of an ingress without a way to the server: were the object gone, what a checkpoint needs would be removed as garbage."""
    answers.RequestHandlerClass.body = body
    with pytest.raises(StoreUnavailable, match=r"404 Not Found, and not as S3 does; look at endpoint\.url") as caught:
        call(behind)
    assert not isinstance(caught.value, NotFound)


@pytest.mark.parametrize(
    "body", [b"<Error><Code>NoSuchKey</Code></Error>", b"<?xml?><Error>\n<Code>NoSuchVersion</Code></Error>"]
)
def test_a_404_of_the_server_itself_says_that_there_is_no_object(answers, behind, body):
    answers.RequestHandlerClass.body = body
    assert not behind.exists("key")
    with pytest.raises(NotFound):
        behind.get("key")


def test_a_server_that_says_that_there_is_no_object_is_back_and_its_bucket_there(answers, behind):
    """A new run asks for nothing else at first: its job would show an error that is over, and fail where the bucket is away."""
    behind.last_error = "s3://bucket/p: connection refused"
    answers.RequestHandlerClass.body = b"<Error><Code>NoSuchKey</Code></Error>"
    assert not behind.exists("key")
    assert behind.last_error == ""
    answers.RequestHandlerClass.body = b"<Error><Code>NoSuchBucket</Code></Error>"
    with pytest.raises(StoreUnavailable) as caught:
        behind.get("key")
    assert not isinstance(caught.value, BucketNotFound)


@pytest.mark.parametrize("call", ["get", "range", "head"])
def test_a_key_longer_than_the_server_takes_is_that_of_no_object_and_is_not_waited_for(answers, behind, call):
    """As one that a safetensors index names: an answer to HEAD has a status, and no code."""
    answers.RequestHandlerClass.status = 400
    answers.RequestHandlerClass.body = b"<Error><Code>KeyTooLongError</Code></Error>"
    with pytest.raises(NotFound):
        CALLS[call](behind)
    assert not behind.exists("key")


@pytest.mark.parametrize("call", ["put", "create"])
def test_a_location_below_which_no_key_fits_is_refused_at_once_with_the_way_out(answers, behind, call):
    answers.RequestHandlerClass.status = 400
    answers.RequestHandlerClass.body = b"<Error><Code>KeyTooLongError</Code></Error>"
    with pytest.raises(Refused, match="s3://bucket/p/key: the server takes no key as long; shorten the uri"):
        CALLS[call](behind)


def test_credentials_that_have_run_out_are_named_also_where_an_answer_to_head_alone_would_not(answers, behind):
    answers.RequestHandlerClass.status = 400
    answers.RequestHandlerClass.body = b"<Error><Code>ExpiredToken</Code></Error>"
    with pytest.raises(Denied):
        behind.head("key")


def test_an_answer_to_head_that_says_all_is_asked_for_once(answers, behind):
    answers.RequestHandlerClass.status = 403
    with pytest.raises(Denied):
        behind.head("key")
    assert answers.RequestHandlerClass.asked == 1


WHEN = {"Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"}


@pytest.mark.parametrize("said", ["A" * 64, "0" * 63, b64encode(bytes(32)).decode(), "unknown", ""])
def test_a_digest_in_another_form_than_ours_in_the_metadata_of_a_users_object_says_nothing(answers, behind, said):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 200, b"content"
    answers.RequestHandlerClass.said = WHEN | {"ETag": '"parts-2"', "x-amz-meta-sha256": said}
    assert behind.get("key") == b"content"


@pytest.mark.parametrize("listed", ['"listed"', 'W/"listed"'], ids=["strong", "weak"])
def test_a_range_of_another_object_than_the_listed_one_is_refused_though_a_server_ignores_conditions(
    answers, behind, listed
):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 206, b"content"
    answers.RequestHandlerClass.said = WHEN | {"ETag": listed, "Content-Range": "bytes 3-9/20"}
    assert behind.get_range("key", 3, 10, listed) == b"content"
    answers.RequestHandlerClass.said = WHEN | {"ETag": '"another"', "Content-Range": "bytes 3-9/20"}
    assert behind.get_range("key", 3, 10) == b"content"
    with pytest.raises(ObjectChanged):
        behind.get_range("key", 3, 10, listed)


def test_an_object_that_was_replaced_is_refused_at_once_where_the_location_was_used(tmp_path, answers, behind):
    answers.RequestHandlerClass.status = 412
    answers.RequestHandlerClass.body = b"<Error><Code>PreconditionFailed</Code></Error>"
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{answers.server_port}", secret="keys")
    used = open_store("s3://bucket/p", endpoint, tmp_path, patience=60, known=True)
    with pytest.raises(ObjectChanged):
        used.get_range("key", 3, 10, '"listed"')
    assert answers.RequestHandlerClass.asked == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [(206, {"Content-Range": "bytes 0-6/20"}), (206, {"Content-Range": "bytes 3-8/20"}), (206, {}), (200, {})],
    ids=["another place", "fewer bytes", "no range", "the whole object"],
)
def test_a_range_that_is_not_the_one_that_was_asked_for_is_never_taken_for_it(answers, behind, status, said):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = status, b"content"
    answers.RequestHandlerClass.said = WHEN | {"ETag": '"listed"'} | said
    with pytest.raises(StoreUnavailable):
        behind.get_range("key", 3, 10, '"listed"')


def test_a_range_of_which_fewer_bytes_arrive_than_its_answer_says_is_never_taken_for_whole(answers, behind):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 206, b"conte"
    answers.RequestHandlerClass.said = WHEN | {"ETag": '"listed"', "Content-Range": "bytes 3-9/20"}
    with pytest.raises(StoreUnavailable, match="5 of 7 bytes arrived"):
        behind.get_range("key", 3, 10, '"listed"')


def deleted(code: str) -> bytes:
    """What S3 answers for one of the objects that a request names."""
    return (
        f"<DeleteResult><Error><Key>p/key</Key><Code>{code}</Code><Message>m</Message></Error></DeleteResult>".encode()
    )


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
def test_a_deletion_that_the_keys_may_not_do_is_refused_and_is_no_store_that_is_away(answers, behind, code):
    """A policy that lacks s3:DeleteObject: S3 answers 200, and names the code beside the key."""
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 200, deleted(code)
    with pytest.raises(
        Denied, match=r"s3://bucket/p/key: credentials of .* refused; check them, and the bucket's policy"
    ):
        behind.delete("key")


@pytest.mark.parametrize("code", ["NoSuchKey", "NoSuchVersion"])
def test_a_server_that_finds_nothing_to_delete_has_done_what_was_asked(answers, behind, code):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 200, deleted(code)
    behind.delete("key")


def test_a_deletion_that_the_server_fails_to_do_is_named_by_its_code_without_the_words_of_the_server(answers, behind):
    answers.RequestHandlerClass.status, answers.RequestHandlerClass.body = 200, deleted("OperationAborted")
    with pytest.raises(
        StoreUnavailable, match=r"^s3://bucket/p/key: the server does not delete it \(OperationAborted\)$"
    ):
        behind.delete("key")


class Named(BaseHTTPRequestHandler):
    """The proxy of a server that knows buckets by the name of the host alone, and keys by the whole path."""

    def do_GET(self) -> None:
        host, path = self.headers["Host"], self.path.removeprefix("http://bucket.s3.test")
        found = type(self).objects.get(path) if host == "bucket.s3.test" else None
        body = found if found is not None else b"<Error><Code>NoSuchBucket</Code></Error>"
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        host, path = self.headers["Host"], self.path.removeprefix("http://bucket.s3.test")
        if host == "bucket.s3.test":
            type(self).objects[path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("style", ["Virtual", "Path"])
def test_a_server_that_knows_a_bucket_by_its_host_alone_has_objects_for_the_virtual_style(
    tmp_path, answers, monkeypatch, style
):
    (tmp_path / "keys").mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / "keys" / name).write_text("value")
    answers.RequestHandlerClass = type("Named", (Named,), {"objects": {}})
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{answers.server_port}")  # resolves the name of the host
    endpoint = EndpointConfig(url="http://s3.test", region="eu-west-1", secret="keys", addressing_style=style)
    store = open_store("s3://bucket/p", endpoint, tmp_path, patience=0.0)
    if style == "Path":
        with pytest.raises(BucketNotFound):
            store.get("a b")
    else:
        store.put("a b", b"content")
        assert store.get("a b") == b"content"
        assert list(answers.RequestHandlerClass.objects) == ["/p/a%20b"]
