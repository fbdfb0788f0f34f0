"""A kubelet's log endpoint behind a real API server: what containers wrote is what the test says."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.integration.apiserver import ApiServer


class FakeKubelet:
    """Serves /containerLogs for a Node that it registers. `logs`: lines by (pod, container); None: the container waits.

    A log that is followed ends when `ended` is set; lines that were added meanwhile are sent before.
    """

    def __init__(self, api: ApiServer, node: str) -> None:
        self.node, self.logs, self.ended = node, dict[tuple[str, str], list[str] | None](), threading.Event()
        self._api = api
        self._server = ThreadingHTTPServer((api.address, 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(api.ca, api.ca.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeKubelet:
        self._thread.start()
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        assert self._api.http.post("/api/v1/nodes", json=node).is_success
        port = self._server.server_address[1]
        status = {
            "addresses": [{"type": "InternalIP", "address": self._api.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"/api/v1/nodes/{self.node}/status"
        assert self._api.http.patch(path, json={"status": status}, headers=headers).is_success
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._api.http.delete(f"/api/v1/nodes/{self.node}")

    def bind(self, namespace: str, pod: str) -> None:
        """As the scheduler would."""
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        answer = self._api.http.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", json=body)
        assert answer.is_success, answer.text


def _handler(kubelet: FakeKubelet) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, _, _, pod, container = url.path.split("/")
            lines = kubelet.logs[pod, container]
            self.send_response(400 if lines is None else 200)
            self.end_headers()
            if lines is None:
                self._send([f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating'])
                return
            self._send(lines)
            if parse_qs(url.query).get("follow") == ["true"]:
                kubelet.ended.wait(60)
                self._send((kubelet.logs[pod, container] or [])[len(lines) :])

        def _send(self, lines: list[str]) -> None:
            self.wfile.write("".join(f"{line}\n" for line in lines).encode())
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Tests print what matters."""

    return Handler
