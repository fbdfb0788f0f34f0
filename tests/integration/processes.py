"""The operator as a process, and a coordinator that it can reach: what tests of whole lives from outside share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from coxswain.names import PORT_COORDINATOR
from tests.children import Child
from tests.integration.apiserver import ApiServer
from tests.integration.life import LIFE, Coordinator, Stage

FAST = ("--lease-seconds", "2", "--renew-seconds", "1.5", "--retry-seconds", "0.2")


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


@contextmanager
def listening(address: str) -> Iterator[Coordinator]:
    """A coordinator that says over HTTP what the stage wants it to say: 503 while it has nothing to say."""
    coordinator = Coordinator()
    coordinator.address = address
    server = ThreadingHTTPServer((address, PORT_COORDINATOR), _handler(coordinator))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield coordinator
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(coordinator: Coordinator) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None if coordinator.word is None else msgspec.json.encode(coordinator.word))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            coordinator.stopping = coordinator.word is not None
            self._answer(b"null" if coordinator.stopping else None)

        def _answer(self, body: bytes | None) -> None:
            self.send_response(200 if body else 503)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler


def play(stage: Stage, meddle: Callable[[str], None] = lambda _: None, deadline: float = 60.0) -> None:
    """The whole life; `meddle` hears the name of every chapter that has just begun. Raises when one takes too long."""
    for chapter in LIFE:
        chapter.act(stage)
        meddle(chapter.name)
        end = time.monotonic() + deadline
        while not chapter.holds(stage):
            if time.monotonic() > end:
                raise AssertionError(f"{chapter.name}: after {deadline} s {stage.status} with {stage.kubelet.names()}")
            stage.tick()
            time.sleep(0.05)
