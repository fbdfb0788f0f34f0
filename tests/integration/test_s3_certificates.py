"""An S3 server behind https:// whose certificate no public authority has signed, as on premises."""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_link.store import Store, StoreUnavailable, open_store
from tests.http_servers import served
from tests.local.jobs import wait_until
from tests.s3server import S3Server

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def s3(authority: trustme.CA) -> Iterator[S3Server]:
    with S3Server(authority) as server:
        server.client().put_object(Bucket=server.bucket("data"), Key="key", Body=b"value")
        yield server


pytestmark = pytest.mark.usefixtures("own_access_alone")


def keys_in_the_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)


def secret(s3: S3Server, folder: Path, authority: bytes | None) -> Path:
    """A folder of mounted Secrets, with this `ca.crt` beside the keys."""
    mounted = folder / "secrets" / "s3"
    mounted.mkdir(parents=True)
    (mounted / "AWS_ACCESS_KEY_ID").write_text(s3.access_key)
    (mounted / "AWS_SECRET_ACCESS_KEY").write_text(s3.secret_key)
    if authority is not None:
        (mounted / "ca.crt").write_bytes(authority)
    return mounted.parent


def with_secret(s3: S3Server, folder: Path) -> Store:
    return open_store("s3://data", EndpointConfig(url=s3.endpoint_url, secret="s3"), folder)


def with_chain(url: str) -> Store:
    return open_store("s3://data", EndpointConfig(url=url))


def test_the_ca_crt_of_the_secret_is_believed(s3) -> None:
    store = with_secret(s3, s3.secrets_dir)
    assert store.get("key") == b"value"
    store.put("other", b"written")
    assert [found.path for found in store.list()] == ["key", "other"]
    assert "SSL_CERT_FILE" not in os.environ


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_file_of_authorities_that_the_environment_names_is_believed(s3, authority, monkeypatch, tmp_path, name):
    authority.cert_pem.write_to_path(tmp_path / "ours.pem")
    monkeypatch.setenv(name, str(tmp_path / "ours.pem"))
    keys_in_the_environment(s3, monkeypatch)
    assert with_chain(s3.endpoint_url).get("key") == b"value"
    assert os.environ[name] == str(tmp_path / "ours.pem")


def test_the_ca_crt_of_the_secret_counts_before_the_environment(s3, monkeypatch, tmp_path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "others.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "others.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "others.pem"))
    assert with_secret(s3, s3.secrets_dir).get("key") == b"value"
    assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "others.pem")


def test_an_authority_of_one_secret_is_not_believed_for_another_server(s3, monkeypatch) -> None:
    with_secret(s3, s3.secrets_dir)
    keys_in_the_environment(s3, monkeypatch)
    with pytest.raises(Refused, match="is signed by an authority that is not known here"):
        with_chain(s3.endpoint_url).get("key")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_beside_the_ca_crt_of_a_secret_no_other_authority_is_believed(
    s3, authority, tmp_path, monkeypatch, variable
) -> None:
    system = tmp_path / "system"
    system.mkdir()
    authority.cert_pem.write_to_path(system / "0a1b2c3d.0")
    monkeypatch.setenv(variable, str(system if variable == "SSL_CERT_DIR" else system / "0a1b2c3d.0"))
    keys_in_the_environment(s3, monkeypatch)
    assert with_chain(s3.endpoint_url).get("key") == b"value"
    with pytest.raises(Refused, match="is signed by an authority that is not known here"):
        with_secret(s3, secret(s3, tmp_path, trustme.CA().cert_pem.bytes())).get("key")


def test_an_unknown_authority_is_refused_at_the_first_call_with_the_way_out(s3, tmp_path) -> None:
    with pytest.raises(Refused) as caught:
        with_secret(s3, secret(s3, tmp_path, trustme.CA().cert_pem.bytes())).get("key")
    assert caught.value.reason == "CertificateInvalid"
    assert caught.value.message == (
        "s3://data/key: the server's certificate is signed by an authority that is not known here; add that authority's "
        "certificate as ca.crt to the Secret of endpoint.secretRef, or name a file of it in AWS_CA_BUNDLE"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello\n", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff\xfe",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
    ids=["empty", "text", "damaged", "binary", "key"],
)  # fmt: skip
def test_a_ca_crt_without_a_certificate_is_refused_by_its_secret(s3, tmp_path, content: bytes) -> None:
    with pytest.raises(Refused, match=r"endpoint.secretRef 's3': ca.crt has no certificate that can be read") as caught:
        with_secret(s3, secret(s3, tmp_path, content)).get("key")
    assert caught.value.reason == "SecretIncomplete"


def test_a_file_that_is_not_there_is_refused_by_its_variable_at_the_first_call(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "absent.pem"))
    keys_in_the_environment(s3, monkeypatch)
    store = with_chain(s3.endpoint_url)
    with pytest.raises(
        Refused, match=r"AWS_CA_BUNDLE .*/absent.pem has no certificate that can be read \(No such file"
    ):
        store.get("key")


def test_authorities_are_not_read_for_a_server_without_tls(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "absent.pem"))
    keys_in_the_environment(S3Server(), monkeypatch)
    with server(None) as address:
        assert with_chain(f"http://{address}").get("key") == b"value"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_system_without_any_authority_is_named_so(tmp_path, monkeypatch, scheme: str) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    keys_in_the_environment(S3Server(), monkeypatch)
    with pytest.raises(Refused, match=r"authority is in SSL_CERT_FILE \(.*/absent.pem\); install"):
        with_chain(f"{scheme}://127.0.0.1:1")
    assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "absent.pem")


class OneObject(BaseHTTPRequestHandler):
    """Answers any GET as S3 does."""

    def do_GET(self) -> None:
        self.send_response(200)
        headers = {"Content-Length": "5", "ETag": '"1"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"value")

    def log_message(self, *_: object) -> None:
        pass


Certificate = tuple[trustme.Blob, trustme.Blob]


def show(context: ssl.SSLContext, certificate: Certificate) -> None:
    with ExitStack() as files:
        context.load_cert_chain(*(files.enter_context(pem.tempfile()) for pem in certificate))


@contextmanager
def server(certificate: Certificate | None, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server with this certificate and key, in this context if one is given; None: it knows no TLS."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), OneObject)
    http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that goes away is no news here
    if certificate is not None:
        context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        show(context, certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
    with served(http):
        yield f"127.0.0.1:{http.server_port}"


def issued(authority: trustme.CA, host: str, **dates: datetime.datetime) -> Certificate:
    leaf = authority.issue_cert(host, **dates)
    return leaf.cert_chain_pems[0], leaf.private_key_pem


def refusal(authority: trustme.CA, url: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    authority.cert_pem.write_to_path(folder / "ours.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(folder / "ours.pem"))
    keys_in_the_environment(S3Server(), monkeypatch)
    with pytest.raises(Refused) as caught:
        with_chain(url).get("key")
    assert caught.value.reason == "CertificateInvalid"
    return caught.value.message


def test_a_certificate_that_has_expired_is_named_so(authority, monkeypatch, tmp_path) -> None:
    with server(issued(authority, "127.0.0.1", not_after=PAST)) as address:
        said = refusal(authority, f"https://{address}", monkeypatch, tmp_path)
    assert "the server's certificate has expired; renew it there, or correct this machine's clock" in said


def test_where_the_store_has_been_used_a_new_certificate_is_waited_for(authority, monkeypatch, tmp_path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ours.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ours.pem"))
    keys_in_the_environment(S3Server(), monkeypatch)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with server(issued(authority, "127.0.0.1", not_after=PAST), context) as address, ThreadPoolExecutor(1) as pool:
        store = open_store("s3://data", EndpointConfig(url=f"https://{address}"), known=True, patience=60.0)
        asked = pool.submit(store.get, "key")
        wait_until(lambda: "has expired" in store.last_error, "a refusal")
        show(context, issued(authority, "127.0.0.1"))
        assert asked.result() == b"value"
    assert store.last_error == ""


def test_a_certificate_of_another_host_is_named_so(authority, monkeypatch, tmp_path) -> None:
    with server(issued(authority, "s3.example")) as address:
        said = refusal(authority, f"https://{address}", monkeypatch, tmp_path)
    assert "certificate does not name the host of endpoint.url; write a host there that it names" in said


def test_a_certificate_that_is_not_valid_yet_is_named_so(authority, monkeypatch, tmp_path) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    with server(issued(authority, "127.0.0.1", not_before=later)) as address:
        said = refusal(authority, f"https://{address}", monkeypatch, tmp_path)
    assert "certificate is not valid yet; correct this machine's clock, or the server's" in said


def test_an_authoritys_own_certificate_does_not_serve(authority, monkeypatch, tmp_path) -> None:
    """As `openssl req -x509` makes one."""
    with server((authority.cert_pem, authority.private_key_pem)) as address:
        said = refusal(authority, f"https://{address}", monkeypatch, tmp_path)
    assert "certificate is that of an authority itself (CA:TRUE), which signs and does not serve" in said


def test_a_server_that_knows_no_tls_is_waited_for_by_that_name(monkeypatch) -> None:
    keys_in_the_environment(S3Server(), monkeypatch)
    with server(None) as address, pytest.raises(StoreUnavailable, match="does not answer with TLS") as caught:
        with_chain(f"https://{address}").get("key")
    assert "is it http:// in endpoint.url?" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1", "Connection refused"),
        ("https://127.0.0.1:1", "Connection refused"),
        ("http://absent.invalid", "failed to lookup address information: Name or service not known"),
    ],
)
def test_why_there_is_no_connection_is_said_without_addresses(monkeypatch, url: str, why: str) -> None:
    keys_in_the_environment(S3Server(), monkeypatch)
    with pytest.raises(StoreUnavailable) as caught:
        with_chain(url).get("key")
    assert str(caught.value) == f"s3://data/key: HTTP error: error sending request: {why}"
