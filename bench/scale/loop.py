"""The limit: one process that does nothing but POST and DELETE pods, so many at a time.

    python -m bench.scale.loop KUBECONFIG NAMESPACE IN_FLIGHT < lines

A line is a manifest to POST (one JSON object), or the name of a pod to DELETE. Prints
time.monotonic() as it sends the first.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml


def session(config: dict[str, Any], connections: int) -> aiohttp.ClientSession:
    """A client of the kubeconfig's server and user. Use as `async with`."""
    cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority), limit=connections)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return aiohttp.ClientSession(base_url=cluster["server"], headers=headers, connector=connector)


async def send_all(config: dict[str, Any], namespace: str, in_flight: int, lines: list[bytes]) -> None:
    waiting, path = iter(lines), f"/api/v1/namespaces/{namespace}/pods"
    async with session(config, in_flight) as http:

        async def send_some() -> None:
            for line in waiting:
                create = line.startswith(b"{")
                where, body = (path, line) if create else (f"{path}/{line.decode()}", None)
                async with http.request("POST" if create else "DELETE", where, data=body) as answer:
                    await answer.read()
                    answer.raise_for_status()

        print(time.monotonic(), flush=True)
        await asyncio.gather(*(send_some() for _ in range(in_flight)))


if __name__ == "__main__":
    kubeconfig, todo = Path(sys.argv[1]), sys.stdin.buffer.read().splitlines()
    asyncio.run(send_all(yaml.safe_load(kubeconfig.read_text()), sys.argv[2], int(sys.argv[3]), todo))
