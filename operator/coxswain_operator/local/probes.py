"""Readiness over HTTP, as a kubelet asks."""

from __future__ import annotations

from typing import Any

import aiohttp

from coxswain.errors import Refused


class Prober:
    """Asks containers whether they are ready. One connection a question: the answer of a dead process must not be cached."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, probe: dict[str, Any], container: dict[str, Any], address: str) -> bool:
        """True for a status in [200, 400) within the probe's timeoutSeconds."""
        url = probe_url(probe, container, address)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        timeout = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        try:
            async with self._session.get(url, timeout=timeout) as response:
                return 200 <= response.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def probe_url(probe: dict[str, Any], container: dict[str, Any], address: str) -> str:
    """Raises Refused for a probe that is not an httpGet."""
    if "httpGet" not in probe:
        kinds = ", ".join(sorted(k for k in probe if isinstance(probe[k], dict)))
        raise Refused(
            "UnsupportedProbe", f"container {container['name']!r}: probe {kinds} needs Kubernetes; here: httpGet"
        )
    get = probe["httpGet"]
    ports = {p.get("name"): p["containerPort"] for p in container.get("ports", ())}
    host, port = get.get("host", address), ports.get(get["port"], get["port"])
    return f"{get.get('scheme', 'HTTP').lower()}://{host}:{port}{get.get('path', '/')}"
