"""The operator as a process, and a coordinator that it can reach: what tests of whole lives from outside share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from coxswain.names import PORT_COORDINATOR
from coxswain.wire import JobReport
from tests.children import Child
from tests.integration.apiserver import ApiServer
from tests.integration.lifecycle import Coordinator, Performance, Stage
from tests.integration.operator_parts import MERGE

QUICK = ("--retry-seconds", "0.2")  # to see a Lease that was let go


def operator(kubeconfig: Path, log: Path, *options: str) -> Child:
    """Starts `python -m coxswain_operator`."""
    command: list[str | Path] = [
        sys.executable, "-m", "coxswain_operator", "--kubeconfig", kubeconfig, "--host", "127.0.0.1", "--port", "0",
    ]  # fmt: skip
    return Child([*command, *options], log)


def holder(api: ApiServer, namespace: str) -> str:
    """Who leads; empty: nobody."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"
    return str(api.http.get(path).json().get("spec", {}).get("holderIdentity") or "")


def let_go(api: ApiServer, namespace: str) -> None:
    """The Lease of a leader that was killed, as if its time were over."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"
    assert api.http.patch(path, json={"spec": {"holderIdentity": ""}}, headers=MERGE).is_success


@contextmanager
def listening(address: str) -> Iterator[Coordinator]:
    """A coordinator that says over HTTP what the stage wants it to say: 503 while it has nothing to say."""
    coordinator, closing = Coordinator(), threading.Event()
    coordinator.address = address
    server = ThreadingHTTPServer((address, PORT_COORDINATOR), _handler(coordinator, closing))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield coordinator
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(coordinator: Coordinator, closing: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = dict(parse_qsl(urlsplit(self.path).query))
            word = _word_after(coordinator, query.get("after", ""), float(query.get("wait", 0)), closing)
            self._answer(None if word is None else msgspec.json.encode(word))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            coordinator.stopping = coordinator.word is not None
            self._answer(b"null" if coordinator.stopping else None)

        def _answer(self, body: bytes | None) -> None:
            self.send_response(200 if body else 503)
            self.send_header("Content-Length", str(len(body or b"")))
            with suppress(ConnectionError):  # whoever asked has been killed
                self.end_headers()
                self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler


def _word_after(coordinator: Coordinator, mark: str, wait: float, closing: threading.Event) -> JobReport | None:
    """As a coordinator answers a long poll: at once what the asker does not know, else after `wait` seconds."""
    end = time.monotonic() + wait
    while coordinator.word is not None and coordinator.word.revision() == mark and time.monotonic() < end:
        if closing.wait(0.02):
            break
    return coordinator.word


def play(stage: Stage, meddle: Callable[[str], None] = lambda chapter: None, deadline: float = 60.0) -> None:
    """The whole life; `meddle` hears the name of every chapter that has just begun. Raises when one takes too long."""
    performance = Performance(stage, deadline, meddle)
    while performance.goes_on():
        time.sleep(0.05)
