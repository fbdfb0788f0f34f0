"""Certificates and keys: whose are believed, which are shown, and that no file of them stays."""

import asyncio
import base64
import json
import ssl
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
import yaml
from aiohttp import web

from coxswain.errors import Refused, Retryable
from coxswain_operator import kopf_watches
from coxswain_operator.kubernetes.access import HOST, PORT, Access, find_access
from coxswain_operator.kubernetes.connection import AuthorityChanged, Connection
from coxswain_operator.kubernetes.trust import Trust
from coxswain_operator.leader import Leader


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def client(authority):
    """(certificate, key) as PEM."""
    own = authority.issue_cert("alice@lab", common_name="alice")
    return b"".join(pem.bytes() for pem in own.cert_chain_pems), own.private_key_pem.bytes()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@asynccontextmanager
async def server(authority, name):
    """Its address. It says in `subject` whose certificate it was shown; its own certificate names `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL

    async def answer(request):
        shown = request.transport.get_extra_info("peercert") or {}
        return web.json_response({"subject": dict(part for (part,) in shown.get("subject", ())).get("commonName", "")})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(path, user, **cluster):
    name = {"name": "x"}
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{**name, "cluster": cluster}],
                "users": [{**name, "user": user}],
                "contexts": [{**name, "context": {"cluster": "x", "user": "x"}}],
                "current-context": "x",
            }
        )
    )
    return path


def encoded(pem):
    return base64.b64encode(pem).decode()


def user_with_data(tmp_path, client):
    return {"client-certificate-data": encoded(client[0]), "client-key-data": encoded(client[1])}


def user_with_files(tmp_path, client):
    (tmp_path / "own.crt").write_bytes(client[0])
    (tmp_path / "own.key").write_bytes(client[1])
    return {"client-certificate": "own.crt", "client-key": "own.key"}


def user_with_command(tmp_path, client):
    status = {"clientCertificateData": client[0].decode(), "clientKeyData": client[1].decode()}
    version = "client.authentication.k8s.io/v1"
    (tmp_path / "credential").write_text(
        json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    )
    script = f"print(open({str(tmp_path / 'credential')!r}).read())"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-c", script]}}


@pytest.mark.parametrize("user", [user_with_data, user_with_files, user_with_command])
async def test_a_client_shows_the_certificate_of_its_kubeconfig_and_leaves_no_file_of_it(
    authority, client, tmp_path, temporary, user
):
    async with server(authority, "127.0.0.1") as url:
        trusted = {"certificate-authority-data": encoded(authority.cert_pem.bytes())}
        access = find_access(kubeconfig(tmp_path / "config", user(tmp_path, client), server=url, **trusted))
        assert not list(temporary.iterdir())
        async with Connection(access) as connection:
            assert await connection.call("GET", "/x") == {"subject": "alice"}
        assert access.authorization() == ""
    assert not list(temporary.iterdir())
    assert client[1].decode() not in repr(access) and "PRIVATE" not in repr(access)


async def test_nothing_stays_of_a_kubeconfig_that_is_refused_half_way(authority, client, tmp_path, temporary):
    user = {**user_with_data(tmp_path, client), "client-key-data": "abc"}
    trusted = {"certificate-authority-data": encoded(authority.cert_pem.bytes())}
    with pytest.raises(Refused, match="config: "):
        find_access(kubeconfig(tmp_path / "config", user, server="https://x", **trusted))
    assert not list(temporary.iterdir())


async def test_a_second_reading_of_a_kubeconfig_finds_its_certificates_again(authority, client, tmp_path, temporary):
    trusted = {"certificate-authority-data": encoded(authority.cert_pem.bytes())}
    path = kubeconfig(tmp_path / "config", user_with_data(tmp_path, client), server="https://x", **trusted)
    assert find_access(path).trust == find_access(path).trust
    assert find_access(path).trust.identity == client[0] + b"\n" + client[1]


@pytest.mark.parametrize("kopf", [False, True])
async def test_the_servers_certificate_must_name_what_the_kubeconfig_says(authority, kopf):
    """kopf's watches connect as the operator's own requests do."""

    def connecting(name):
        trust = Trust(authority.cert_pem.bytes(), server_name=name)
        return Connection(Access(url, OfKopf(kopf_watches.connection_info(Access(url, trust))) if kopf else trust))

    async with server(authority, "api.internal") as url:
        async with connecting("api.internal") as connection:
            assert await connection.call("GET", "/x") == {"subject": ""}
        for wrong in (None, "other.internal"):
            async with connecting(wrong) as connection:
                with pytest.raises(Retryable, match="certificate"):
                    await anext(connection.lines("/x", 30.0))  # a watch makes one attempt


class OfKopf:
    """The context that kopf asks for, as a Trust."""

    def __init__(self, info):
        self.context = info.as_ssl_context


async def test_a_server_of_another_authority_is_not_believed_unless_verification_is_off(authority):
    other = trustme.CA().cert_pem.bytes()
    async with server(authority, "127.0.0.1") as url:
        for trust in (Trust(other), Trust()):
            async with Connection(Access(url, trust)) as connection:
                with pytest.raises(Retryable, match="certificate"):
                    await anext(connection.lines("/x", 30.0))
        async with Connection(Access(url, Trust(other, verify=False))) as connection:
            assert await connection.call("GET", "/x") == {"subject": ""}


@pytest.mark.parametrize("changed", [False, True])
async def test_a_process_whose_authorities_have_changed_since_it_read_them_ends_and_another_one_is_waited_for(
    authority, tmp_path, changed
):
    """A standby that went on with those of its start could never lead."""
    for name, text in (("ca.crt", trustme.CA().cert_pem.bytes()), ("token", b"t")):
        (tmp_path / name).write_bytes(text)
    async with server(authority, "127.0.0.1") as url:
        _, host, port = url.replace("//", "").split(":")
        access = find_access(account=tmp_path, environment={HOST: host, PORT: port})
        async with Connection(access, 1.0) as connection:
            if changed:
                authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
            for call in (connection.call("GET", "/x"), anext(connection.lines("/x", 1.0))):
                with pytest.raises(AuthorityChanged if changed else Retryable, match="certificate"):
                    await call


async def test_a_candidate_ends_with_a_change_of_the_authorities_and_a_holder_writes_no_more():
    class Untrusted:
        async def call(self, *_, **__):
            raise AuthorityChanged("ca.crt has changed")

    leader = Leader(Untrusted(), "ns", "lease", "a")
    for waiting in (leader.acquire(), leader.hold()):
        leader.renewed = asyncio.get_running_loop().time()
        with pytest.raises(AuthorityChanged):
            await waiting
    assert not leader.may_write()


async def test_without_an_authority_those_of_the_system_are_believed(authority, tmp_path, monkeypatch):
    authority.cert_pem.write_to_path(str(tmp_path / "system.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    async with server(authority, "127.0.0.1") as url, Connection(Access(url, Trust())) as connection:
        assert await connection.call("GET", "/x") == {"subject": ""}


def test_a_context_keeps_no_file_open(authority, client):
    trust = Trust(authority.cert_pem.bytes(), identity=client[0] + client[1])
    before = len(list(Path("/proc/self/fd").iterdir()))
    trust.context()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_key_of_another_certificate_and_a_text_that_is_no_certificate_are_errors(authority, client):
    other = authority.issue_cert("bob@lab").private_key_pem.bytes()
    for trust in (Trust(identity=client[0] + other), Trust(identity=b"x"), Trust(b"x")):
        with pytest.raises(OSError, match=r"."):
            trust.context()


def test_a_proxy_of_https_beside_another_name_of_the_certificate_is_refused_by_name(tmp_path):
    fields = {"server": "https://x", "tls-server-name": "api.internal", "proxy-url": "https://proxy:8"}
    with pytest.raises(Refused, match="tls-server-name and a proxy-url of https"):
        find_access(kubeconfig(tmp_path / "config", {}, **fields))
    del fields["tls-server-name"]
    assert find_access(kubeconfig(tmp_path / "config", {}, **fields)).proxy == "https://proxy:8"
