"""A server that does not know conditional writes: the fence between two coordinators rests on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain.names import ENV_STORE_PATIENCE
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_link.store import Store, open_store
from tests.http_servers import served
from tests.s3server import S3Server
from tests.unit.coordinator_fakes import make_job


class OldServer(ThreadingHTTPServer):
    """S3 as far as a claim needs it. It ignores If-None-Match, or answers that it does not implement it."""

    def __init__(self, refuses: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.refuses, self.objects = refuses, dict[str, tuple[bytes, str]]()


class _Request(BaseHTTPRequestHandler):
    server: OldServer

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses and "If-None-Match" in self.headers:
            self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
            return
        self.server.objects[self.path] = data, self.headers.get("x-amz-meta-sha256", "")
        self._answer(200, b"")

    def do_GET(self) -> None:
        if self.path not in self.server.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, digest = self.server.objects[self.path]
        self._answer(200, data, {"x-amz-meta-sha256": digest} if digest else {})

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, also: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        date = "Sun, 06 Nov 1994 08:49:37 GMT"
        headers = {"Content-Length": str(len(body)), "ETag": etag, "Last-Modified": date} | (also or {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["ignores the condition", "refuses it"])
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OldServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv(ENV_STORE_PATIENCE, "0")
    with served(OldServer(request.param)) as server:
        yield server


def location(server: OldServer) -> Store:
    return open_store("s3://runs/demo", EndpointConfig(url=f"http://127.0.0.1:{server.server_port}"))


def claim_refused(server: OldServer, folder: Path) -> Refused:
    with pytest.raises(Refused) as caught:
        CheckpointStore(make_job(folder), location(server)).open()
    return caught.value


def test_a_new_location_is_refused_with_the_way_out(old: OldServer, tmp_path: Path) -> None:
    refused = claim_refused(old, tmp_path)
    assert "conditional writes" in refused.message and "If-None-Match" in refused.message
    assert refused.message.startswith("s3://runs/demo/run.json: ")
    assert refused.reason == "ConditionalWritesMissing"


@pytest.mark.parametrize("old", [False], indirect=True, ids=["ignores the condition"])
def test_the_record_of_another_run_stays(old: OldServer, tmp_path: Path) -> None:
    theirs = b'{"job": "team/other", "uid": "u2"}'
    location(old).put("run.json", theirs)
    assert claim_refused(old, tmp_path).reason == "ConditionalWritesMissing"
    assert location(old).get("run.json").strip() == theirs


@pytest.mark.parametrize("old", [True], indirect=True, ids=["refuses the condition"])
def test_a_create_that_is_not_implemented_is_not_waited_for(old: OldServer) -> None:
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{old.server_port}")
    store = open_store("s3://runs/demo", endpoint, known=True, patience=3600.0)
    with pytest.raises(Refused, match="does not implement a create that replaces nothing"):
        store.create("log/1", b"plan")
    assert store.exists("log/1") is False


def test_a_server_with_conditional_writes_is_asked_and_keeps_what_is_there(tmp_path: Path) -> None:
    with S3Server() as server:
        server.bucket("runs")
        endpoint = EndpointConfig(url=server.endpoint_url, region=server.region, secret="s3")
        store = open_store("s3://runs/demo", endpoint, server.secrets_dir)
        CheckpointStore(make_job(tmp_path), store).open()
        first = store.get("run.json")
        CheckpointStore(make_job(tmp_path), store).open()
        assert store.get("run.json") == first
