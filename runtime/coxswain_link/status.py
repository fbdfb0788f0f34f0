"""/healthz, /readyz and /metrics of a service without an event loop, from standard library threads.

Importing aiohttp would take a third of the time in which loaders and constructors start.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import ThreadingTCPServer
from typing import Any

from coxswain.errors import Retryable
from coxswain_link.metrics import MetricsRegistry

log = logging.getLogger(__name__)

SILENCE = 30.0  # seconds, within a request and between two: each caller has a thread

Answer = tuple[int, bytes]
Pages = dict[str, Callable[[], Answer]]


def addresses(host: str) -> tuple[str, ...]:
    """Listen addresses: in a pod also loopback, which `kubectl port-forward` uses."""
    found = ip_address(host)
    if found.is_loopback or found.is_unspecified:
        return (host,)
    return host, "127.0.0.1" if found.version == 4 else "::1"


class StatusServer:
    """Listens on construction (at `port`); `close()` ends it. Hangs up on a caller that is silent for `silence` seconds.

    Raises Retryable when the port is taken.
    """

    def __init__(
        self, host: str, port: int, metrics: MetricsRegistry, ready: Callable[[], bool] = lambda: True,
        silence: float = SILENCE,
    ) -> None:  # fmt: skip
        pages: Pages = {
            "/healthz": lambda: (200, b"ok\n"),
            "/readyz": lambda: (200, b"ready\n") if ready() else (503, b"not ready\n"),
            "/metrics": lambda: (200, metrics.exposition()),
        }
        self.port, self._servers = port, list[_Server]()
        for address in addresses(host):
            self._servers.append(_listen(address, self.port, pages, silence))
            self.port = self._servers[-1].server_address[1]

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def serve_status(
    host: str, port: int, metrics: MetricsRegistry, ready: Callable[[], bool] = lambda: True
) -> StatusServer:
    return StatusServer(host, port, metrics, ready)


class _Server(ThreadingTCPServer):
    allow_reuse_address, daemon_threads, block_on_close = True, True, False

    def __init__(self, address: str, port: int, pages: Pages, silence: float) -> None:
        self.address_family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
        self.pages, self.silence = pages, silence
        super().__init__((address, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        caller, address = super().get_request()
        caller.settimeout(self.silence)
        return caller, address

    def handle_error(self, *_: Any) -> None:
        log.debug("a caller of the status pages disconnected", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        status, body = page() if page else (404, b"not found\n")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: probes come every two seconds."""


def _listen(address: str, port: int, pages: Pages, silence: float) -> _Server:
    try:
        server = _Server(address, port, pages, silence)
    except OSError as error:
        raise Retryable(
            f"cannot listen on {address}:{port}: {error.strerror}; does another process listen there?"
        ) from error
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    return server
