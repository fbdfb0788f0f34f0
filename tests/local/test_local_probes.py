"""Probes of the local cluster judge answers as a kubelet does."""

import asyncio

import pytest

from coxswain_operator.local.probes import Prober, number, probe_url


@pytest.fixture
async def served():
    """Makes a server that sends this to each caller; returns its port."""
    servers, silence = [], asyncio.Event()

    async def serve(answer):
        async def send(reader, writer):
            await reader.readline()
            writer.write(answer)
            await writer.drain()
            await (silence.wait() if not answer else asyncio.sleep(0))
            writer.close()

        servers.append(await asyncio.start_server(send, "127.0.0.1", 0))
        return servers[-1].sockets[0].getsockname()[1]

    yield serve
    silence.set()
    for server in servers:
        server.close()


async def asked(port, **probe):
    prober = Prober()
    try:
        return await prober.ask({"httpGet": {"port": port, "path": "/"}, **probe}, {"name": "main"}, "127.0.0.1")
    finally:
        await prober.close()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (302, True), (399, True), (400, False), (503, False)])
async def test_a_status_from_200_to_399_is_a_success(served, status, healthy):
    port = await served(f"HTTP/1.1 {status} X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n".encode())
    assert await asked(port) is healthy


async def test_a_server_that_is_silent_or_sends_something_else_or_is_gone_has_failed(served):
    assert not await asyncio.wait_for(asked(await served(b""), timeoutSeconds=0.05), 5)
    assert not await asked(await served(b"SSH-2.0\r\n"))
    assert not await asked(9)


async def test_a_proxy_of_the_users_shell_is_asked_for_no_probe(served, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert await asked(await served(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))


def test_a_named_port_is_that_of_the_container():
    container = {"name": "main", "ports": [{"name": "http", "containerPort": 7400}]}
    probe = {"httpGet": {"port": "http", "path": "/readyz", "scheme": "HTTPS"}}
    assert probe_url(probe, container, "127.64.0.1") == "https://127.64.0.1:7400/readyz"


@pytest.mark.parametrize("get", [{"path": "readyz"}, {"path": "/readyz", "host": "", "scheme": ""}])
def test_a_path_without_a_slash_and_what_is_empty_are_taken_as_by_a_kubelet(get):
    assert probe_url({"httpGet": {"port": 80, **get}}, {"name": "main"}, "127.64.0.1") == "http://127.64.0.1:80/readyz"


@pytest.mark.parametrize("get", [{"port": "no-such-port"}, {"port": 80, "host": "a b"}])
async def test_a_probe_that_is_no_url_has_failed(get):
    assert not await asked(80, httpGet=get)


@pytest.mark.parametrize(
    ("field", "default"),
    [("initialDelaySeconds", 0), ("periodSeconds", 10), ("timeoutSeconds", 1), ("failureThreshold", 3)],
)
def test_a_field_of_a_probe_that_is_absent_or_zero_has_kubernetes_default(field, default):
    assert [number(probe, field) for probe in ({}, {field: 0}, {field: 7})] == [default, default, 7]
