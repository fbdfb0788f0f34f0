"""Probes over HTTP, as a kubelet sends them."""

from __future__ import annotations

import asyncio
from typing import Any

from coxswain.errors import Refused
from coxswain.import_guard import block_imports

with block_imports("httpx._main"):  # its command line: rich and pygments would take longer than all the rest
    import httpx


_DEFAULTS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3}


def number(probe: dict[str, Any], field: str) -> float:
    """A field of a probe; one that is 0 has its default, as on Kubernetes."""
    return float(probe.get(field) or _DEFAULTS[field])


class Prober:
    """Probes containers. Each probe opens a connection, as that to an ended process may linger."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False, verify=False)  # as a kubelet: any certificate

    async def ask(self, probe: dict[str, Any], container: dict[str, Any], address: str) -> bool:
        """True for a status in [200, 400) within the probe's timeoutSeconds."""
        try:
            async with asyncio.timeout(number(probe, "timeoutSeconds")):
                response = await self._http.get(probe_url(probe, container, address))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError):
            return False
        return 200 <= response.status_code < 400

    async def close(self) -> None:
        await self._http.aclose()


def probe_url(probe: dict[str, Any], container: dict[str, Any], address: str) -> str:
    """Raises Refused for a probe that is not an httpGet."""
    if "httpGet" not in probe:
        kinds = ", ".join(sorted(k for k in probe if isinstance(probe[k], dict)))
        raise Refused(
            "UnsupportedProbe", f"container {container['name']!r}: probe {kinds} needs Kubernetes; here: httpGet"
        )
    get = probe["httpGet"]
    ports = {p.get("name"): p["containerPort"] for p in container.get("ports", ())}
    host, port = get.get("host") or address, ports.get(get["port"], get["port"])
    return f"{(get.get('scheme') or 'HTTP').lower()}://{host}:{port}/{(get.get('path') or '').removeprefix('/')}"
