"""A kubeconfig whose server stands behind a proxy, or has a certificate of another name than its address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from coxswain.errors import Retryable
from coxswain_operator.kubernetes import Connection, find_access
from tests.integration.apiserver import ApiServer

NAMED = "kubernetes.default.svc"  # in the certificate of every kube-apiserver


def kubeconfig(api: ApiServer, path: Path, **fields: str) -> Path:
    content = yaml.safe_load(api.access_for(path).read_text())
    content["clusters"][0]["cluster"] |= fields
    path.write_text(yaml.safe_dump(content))
    return path


@asynccontextmanager
async def proxy(connected: list[str]) -> AsyncIterator[str]:
    """Its URL; `connected` gets where clients wanted to go."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        place = request.split()[1].decode()
        connected.append(place)
        host, port = place.rsplit(":", 1)
        back, forth = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, forth), copy(back, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def version(access: Path) -> str:
    """Asked once: `call` would try again until its deadline."""
    async with Connection(find_access(access)) as connection:
        answer = b"".join([line async for line in connection.lines("/version", silence=30.0, torn=True)])
    return str(json.loads(answer)["major"])


async def test_a_server_behind_the_proxy_of_its_kubeconfig_answers_by_it(api: ApiServer, tmp_path: Path) -> None:
    connected: list[str] = []
    async with proxy(connected) as url:
        assert await version(kubeconfig(api, tmp_path / "k", **{"proxy-url": url})) == "1"
    assert connected == [api.url.removeprefix("https://")]


async def test_the_certificate_must_have_the_name_that_the_kubeconfig_gives(api: ApiServer, tmp_path: Path) -> None:
    assert await version(kubeconfig(api, tmp_path / "k", **{"tls-server-name": NAMED})) == "1"
    with pytest.raises(Retryable, match="certificate is not valid for 'another"):
        await version(kubeconfig(api, tmp_path / "k", **{"tls-server-name": "another.example"}))
