"""Where keys to an S3 server come from, and that no message contains them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain.names import ENV_INCARNATION
from coxswain_link.s3 import find_access
from coxswain_link.store import StoreUnavailable, open_store
from tests.s3server import S3Server
from tests.sts import TokenService

IDENTITY = "coxswain-test-identity"
Environment = dict[str, str]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.client().put_object(Bucket=server.bucket("data"), Key="key", Body=b"value")
        yield server


@pytest.fixture(scope="module")
def tokens(s3: S3Server) -> Iterator[TokenService]:
    with TokenService(IDENTITY, s3.access_key, s3.secret_key) as service:
        yield service


pytestmark = pytest.mark.usefixtures("own_access_alone")


def by_environment(s3: S3Server, folder: Path, sts: str, identity: str = IDENTITY) -> Environment:
    return {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}


def by_profile(s3: S3Server, folder: Path, sts: str, identity: str = IDENTITY) -> Environment:
    file = folder / "credentials"
    file.write_text(f"[work]\naws_access_key_id={s3.access_key}\naws_secret_access_key={s3.secret_key}\n")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "work"}


def by_web_identity(s3: S3Server, folder: Path, sts: str, identity: str = IDENTITY) -> Environment:
    (folder / "identity").write_text(identity)
    role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/trainer", "AWS_ROLE_SESSION_NAME": "trainer"}
    return {**role, "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "identity"), "AWS_ENDPOINT_URL_STS": sts}


WAYS = {"env": by_environment, "shared-credentials-file": by_profile, "assume-role-with-web-identity": by_web_identity}


def read(s3: S3Server, monkeypatch: pytest.MonkeyPatch, environment: Environment) -> bytes:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return open_store("s3://data", EndpointConfig(url=s3.endpoint_url, region=s3.region)).get("key")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_link_of_the_chain_opens_the_bucket(
    s3: S3Server, tokens: TokenService, monkeypatch, tmp_path: Path, way: Callable[..., Environment]
) -> None:
    before = tokens.asked
    assert read(s3, monkeypatch, way(s3, tmp_path, tokens.url)) == b"value"
    assert (tokens.asked > before) == (way is by_web_identity)


def test_a_session_token_goes_with_the_keys_that_it_came_with(monkeypatch, tmp_path: Path) -> None:
    with TokenService(IDENTITY, "key", "secret", "session") as tokens:
        for name, value in by_web_identity(S3Server(), tmp_path, tokens.url).items():
            monkeypatch.setenv(name, value)
        keys = find_access(EndpointConfig(), None)()
    assert (keys["access_key_id"], keys["secret_access_key"], keys["token"]) == ("key", "secret", "session")


@pytest.mark.parametrize("name", WAYS)
def test_keys_that_the_server_refuses_are_named_by_their_link_and_not_shown(
    s3: S3Server, tokens: TokenService, monkeypatch, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(s3, "secret_key", "not-the-key", raising=False)
    with TokenService(IDENTITY, s3.access_key, "not-the-key") as wrong, pytest.raises(Refused) as caught:
        read(s3, monkeypatch, WAYS[name](s3, tmp_path, wrong.url))
    assert caught.value.reason == "AccessDenied"
    assert f"s3://data/key: credentials of boto3's chain ({name}) refused" in caught.value.message
    said = caught.value.message + caplog.text
    assert not [secret for secret in ("not-the-key", s3.access_key, IDENTITY) if secret in said]


def test_a_token_service_that_refuses_is_named_with_its_message(s3: S3Server, tokens, monkeypatch, tmp_path) -> None:
    with pytest.raises(Refused, match=r"assume-role-with-web-identity.*InvalidIdentityToken.*not known here") as caught:
        read(s3, monkeypatch, by_web_identity(s3, tmp_path, tokens.url, "stolen"))
    assert caught.value.reason == "AccessDenied"
    assert "stolen" not in caught.value.message


def test_an_unreachable_token_service_is_retryable(s3: S3Server, tokens, monkeypatch, tmp_path) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"credentials of boto3's chain \(assume-role-with-web-identity\): Could not connect"
    ):
        read(s3, monkeypatch, {**by_web_identity(s3, tmp_path, "http://127.0.0.1:9"), "AWS_MAX_ATTEMPTS": "1"})


def test_a_profile_that_does_not_exist_is_named(s3: S3Server, monkeypatch) -> None:
    with pytest.raises(Refused, match=r"credentials of boto3's chain: .*absent"):
        read(s3, monkeypatch, {"AWS_PROFILE": "absent"})


def test_half_a_pair_of_keys_is_refused(s3: S3Server, monkeypatch) -> None:
    with pytest.raises(Refused, match=r"credentials of boto3's chain: Partial credentials found in env.*SECRET"):
        read(s3, monkeypatch, {"AWS_ACCESS_KEY_ID": "half"})


def test_missing_keys_are_refused_with_the_ways_to_provide_some(s3: S3Server, monkeypatch) -> None:
    with pytest.raises(Refused, match=r"no credentials .*profile, web identity.*endpoint\.secretRef"):
        read(s3, monkeypatch, {})


def test_keys_of_a_secret_are_read_again_when_it_changes(s3: S3Server, tmp_path: Path) -> None:
    folder = tmp_path / "s3"
    folder.mkdir()
    for name, value in (("AWS_ACCESS_KEY_ID", "one"), ("AWS_SECRET_ACCESS_KEY", "first")):
        (folder / name).write_text(value)
    access = find_access(EndpointConfig(secret="s3"), tmp_path)
    assert access()["secret_access_key"] == "first"
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("second\n")
    (folder / "AWS_SESSION_TOKEN").write_text("session")
    assert (access()["secret_access_key"], access()["token"]) == ("second", "session")


def test_an_endpoint_may_come_from_the_environment_as_for_the_aws_command(s3: S3Server, monkeypatch, tmp_path) -> None:
    for name, value in {**by_environment(s3, tmp_path, ""), "AWS_ENDPOINT_URL_S3": s3.endpoint_url}.items():
        monkeypatch.setenv(name, value)
    assert open_store("s3://data").get("key") == b"value"


class Agent(ThreadingHTTPServer):
    """A node's agent that gives pods their keys. Until `up`, it takes the port and answers nothing."""

    def __init__(self, s3: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.keys, self.up, self.asked = (s3.access_key, s3.secret_key), False, 0

    def __enter__(self) -> Agent:
        self._thread = threading.Thread(target=self.serve_forever, name="agent")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join(timeout=30)
        self.server_close()


class _Answer(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        self.server.asked += 1
        if not self.server.up:
            self.server.up = self.server.asked >= 4  # boto3 itself asks three times
            self.connection.close()
            return
        key, secret = self.server.keys
        until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": "", "Expiration": until}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


def by_agent(agent: Agent) -> Environment:
    return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{agent.server_address[1]}/"}


@pytest.mark.parametrize("known", [True, False])
def test_keys_of_an_agent_that_comes_up_after_the_pod_open_the_bucket(s3: S3Server, monkeypatch, known: bool) -> None:
    with Agent(s3) as agent:
        for name, value in by_agent(agent).items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://data", EndpointConfig(url=s3.endpoint_url, region=s3.region), known=known, patience=30)
        assert store.get("key") == b"value"
    assert agent.asked > 4


@pytest.mark.parametrize("incarnation", ["0", "3"])
def test_an_agent_that_stays_away_is_no_fault_of_the_user(s3: S3Server, monkeypatch, incarnation: str) -> None:
    monkeypatch.setenv(ENV_INCARNATION, incarnation)
    with pytest.raises(StoreUnavailable, match=r"credentials of boto3's chain: .*container"):
        read(s3, monkeypatch, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/"})


LACKING: list[tuple[EndpointConfig, str]] = [
    (EndpointConfig(), "boto3's chain found no credentials"), (EndpointConfig(secret="absent"), "secretRef 'absent'"),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "says"), LACKING, ids=["the chain", "a Secret"])
@pytest.mark.parametrize("known", [True, False])
def test_missing_keys_are_waited_for_only_where_the_location_was_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, endpoint: EndpointConfig, says: str, known: bool
) -> None:
    store = open_store("s3://data", endpoint, tmp_path, known=known, patience=0.5)
    with pytest.raises(Refused, match=says):
        store.get("key")
    assert ("retrying" in caplog.text) == known
