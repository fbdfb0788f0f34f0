"""A page in place of an S3 server, as of a portal that wants a login, is no empty bucket; a server that answers oddly is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_link.store import Store, StoreUnavailable, open_store

PAGE = b"<html><head><title>Log in</title></head><body><p>Welcome</p></body></html>"
EMPTY = (
    b"<ListBucketResult><Name>corpus</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
)


class Portal(BaseHTTPRequestHandler):
    """Answers any request with its page."""

    protocol_version = "HTTP/1.1"
    etag, body, to_head = "", PAGE, 200

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.to_head if self.command == "HEAD" else 200)
        self.send_header("Content-Length", str(len(self.body)))
        if self.etag:
            self.send_header("ETag", self.etag)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else self.body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


class CachedPortal(Portal):
    etag = '"5f3c"'


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Portal]], Store]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    servers: list[ThreadingHTTPServer] = []

    def begin(portal: type[Portal]) -> Store:
        servers.append(server := ThreadingHTTPServer(("127.0.0.1", 0), portal))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        return open_store("s3://corpus/code", EndpointConfig(url=url), patience=0.0)

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("portal", [Portal, CachedPortal])
@pytest.mark.parametrize("listed", [lambda store: store.list("log/"), lambda store: list(store.corpus(bool))])
def test_a_page_is_no_empty_listing(
    at: Callable[[type[Portal]], Store], portal: type[Portal], listed: Callable[[Store], object]
) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"s3://corpus/code/.*: what answers is no S3 server.*; look at endpoint"
    ):
        listed(at(portal))


@pytest.mark.parametrize("status", [400, 403, 404, 405, 412, 500])
def test_an_empty_listing_stays_one_whatever_the_server_answers_of_a_key_that_is_not_there(
    at: Callable[[type[Portal]], Store], status: int
) -> None:
    """versitygw answers a key below an object with an error that names no absent object."""

    class Server(Portal):
        body, to_head = EMPTY, status

    assert at(Server).list("log/") == []


def is_document(name: str) -> bool:
    return not f"/{name}".endswith("/")


def listing(names: list[str]) -> bytes:
    """The answer that lists these keys of `corpus/code`. Those of folders, `name/` and the uri's own, are empty."""
    date, etag = "2026-01-01T00:00:00.000Z", "&quot;1&quot;"
    found = (
        f"<Contents><Key>code/{name}</Key><LastModified>{date}</LastModified><ETag>{etag}</ETag>"
        f"<Size>{int(is_document(name))}</Size></Contents>"
        for name in names
    )
    head = f"<ListBucketResult><Name>corpus</Name><KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>"
    return f"{head}{''.join(found)}</ListBucketResult>".encode()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "names",
    [[f"{n:04}" for n in range(1000)], ["b", "a"], ["a", "a"], ["a", "c", "b"]],
    ids=["the first page again", "backwards", "twice", "one out of order"],
)
def test_a_listing_that_does_not_go_on_by_key_is_refused_and_never_read_for_ever(at, names: list[str]) -> None:
    class Unordered(Portal):
        body = listing(names)

    with pytest.raises(
        Refused, match=r"s3://corpus/code.*: the server lists keys in another order.*start-after"
    ) as caught:
        at(Unordered).list()
    assert caught.value.reason == "ListingUnordered"


def test_keys_are_in_the_order_of_their_bytes(at) -> None:
    ordered = ["A", "a b", "a!c", "a%20b", "a-b", "a.b", "a/b", "a0", "z", "\u00e4", "\u65e5", "\U0001f6f6"]

    class Server(Portal):
        body = listing(ordered)

    assert [found.path for found in at(Server).list()] == ordered


@pytest.mark.timeout(30)
def test_a_server_whose_pages_hold_nothing_but_the_mark_of_the_uri_is_refused_instead_of_asked_for_ever(at) -> None:
    class Same(Portal):
        body = listing([""] * 1000)

    with pytest.raises(Refused) as caught:
        at(Same).list()
    assert caught.value.reason == "ListingUnordered"


def bucket(names: list[str]) -> type[Portal]:
    """A server that lists these keys by `start-after`, as S3 does: a page of a thousand at a time."""

    class Bucket(Portal):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            after = query.get("start-after", [""])[0]
            self.body = listing([name for name in sorted(names) if f"code/{name}" > after][:1000])
            super().do_GET()

    return Bucket


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "names",
    [
        ["", "!x", "web-2/x", "web/", "web/x", "web0"],
        ["web", "web-2/x", "web.old/", "web.old/x", "web/", "web/x"],
        ["web", "web/"],
        [*(f"a{n:03}" for n in range(999)), "web/", "web/x", "z"],
        [*(f"a{n:03}" for n in range(999)), "b", "b-1", "b/", *(f"b/{n:03}" for n in range(999)), "c/"],
        [*(f"a{n:03}" for n in range(996)), "b-1", "b-2", "b/", "b/c-1", "b/c/", "b/c/d"],
        [f"web{n:04}/" for n in range(2500)] + ["web9"],
    ],
    ids=["beside", "two", "of an object's name", "ends a page", "behind a page", "nested", "marks alone"],
)
def test_the_mark_of_a_folder_that_sorts_behind_its_neighbours_refuses_no_listing_and_hides_no_object(
    at, names: list[str]
) -> None:
    """Consoles make the empty key `web/` for a folder. It is listed as `web`, and by its bytes it comes behind `web-2/x`."""
    found = [info.path for info in at(bucket(names)).list() if info.size]
    assert found == sorted(filter(is_document, names))
