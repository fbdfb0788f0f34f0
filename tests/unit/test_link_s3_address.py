"""What no request to an S3 server can name is refused by its field: obstore would end the process with a panic."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coxswain.api.common import Endpoint
from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_link.s3 import Access, Keys, find_access
from coxswain_link.s3_address import check_url, with_bucket
from coxswain_link.store import open_store
from coxswain_link.store_faults import Denied

SERVER = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    "url",
    [
        "http://minio:9000 ", "http://minio:9000\n", "http://mi nio", "http://miniö", "http://minio:x", "http://minio:99999",
        "http://[::1", "http://[1::2::3]", "http://999.1.1.1", "http://", "http:///path", "http://minio/?a=b", "http://minio/#a",
        "http://minio/{a}", "HTTP://minio", "minio:9000", "s3://minio",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_by_its_field(url: str) -> None:
    with pytest.raises(Refused, match=r"^endpoint\.url .*: allowed are http:// or https://") as error:
        open_store("s3://runs/demo", EndpointConfig(url=url))
    assert error.value.reason == "InvalidEndpoint"


@pytest.mark.parametrize(
    "url",
    [
        "http://minio", "https://minio.storage.svc:9000/", "http://10.0.0.1:7070/s3", "http://[fd00::1]:9000",
        "http://mini_o.1a:80/a%20b", "https://user:word@minio",
    ],
)  # fmt: skip
def test_an_address_of_a_server_is_taken(url: str) -> None:
    check_url("endpoint.url", url)
    assert Endpoint(url=url).url == url


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(Refused) as error:
        check_url("endpoint.url", "https://user:word@minio:x")
    assert "word" not in str(error.value) and "'https://minio:x'" in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_ENDPOINT_URL_S3", "minio:9000"), ("AWS_ENDPOINT_URL", "minio"), ("AWS_REGION", "eu west"),
        ("AWS_DEFAULT_REGION", "ü"),
    ],
)  # fmt: skip
def test_a_variable_that_is_at_fault_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Refused, match=f"^{variable} '{value}': allowed are"):
        open_store("s3://runs/demo")


def test_a_line_break_at_the_end_of_a_variable_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{SERVER}\n")
    monkeypatch.setenv("AWS_REGION", "eu-west-1\n")
    open_store("s3://runs/demo")


@pytest.mark.parametrize("region", ["eu west", "eu\n", "eu/west", "*"])
def test_a_region_that_cannot_be_signed_for_is_refused_by_its_field(region: str) -> None:
    with pytest.raises(Refused, match=r"^endpoint\.region .*: allowed are letters"):
        open_store("s3://runs/demo", EndpointConfig(url=SERVER, region=region))


@pytest.mark.parametrize("bucket", ["", "ru ns", "rüns", "runs?x", "runs#", "ru%20ns", "me@runs"])
def test_a_bucket_that_no_request_can_name_is_refused(bucket: str) -> None:
    with pytest.raises(Refused, match=r"^uri 's3://.*/demo', bucket '.*': allowed are letters"):
        open_store(f"s3://{bucket}/demo", EndpointConfig(url=SERVER))


class Given(Access):
    origin = "of a test"

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._given = keys

    def _keys(self) -> Keys:
        return self._given


def test_a_line_break_at_the_end_of_a_key_is_no_part_of_it() -> None:
    found = Given(("key\n", "secret\r\n", "token\n"))()
    assert (found["access_key_id"], found["secret_access_key"], found["token"]) == ("key", "secret", "token")


@pytest.mark.parametrize("keys", [("k\ney", "s", None), ("k", "sé", None), ("k", "s", "t\x00n")])
def test_keys_that_no_header_can_have_are_refused_and_not_shown(keys: Keys) -> None:
    access = Given(keys)
    with pytest.raises(Denied, match=r"^credentials of a test: one has a line break, or a letter") as error:
        access()
    assert access.fault is error.value
    assert "sé" not in str(error.value) and "k\ney" not in str(error.value)


def test_the_keys_of_a_chain_are_cleaned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret\n")
    found = find_access(EndpointConfig(), None)()
    assert (found["access_key_id"], found["secret_access_key"]) == ("key", "secret")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://s3.test:9000", "http://runs.s3.test:9000"),
        ("https://user:word@s3.test/base", "https://user:word@runs.s3.test/base"),
    ],
)
def test_the_virtual_style_puts_the_bucket_before_the_host(url: str, found: str) -> None:
    assert with_bucket(url, "runs") == found


@pytest.mark.parametrize(
    ("url", "bucket"), [("http://10.0.0.1:9000", "runs"), ("http://[fd00::1]", "runs"), ("http://s3.test", "a:b")]
)
def test_a_bucket_that_cannot_stand_before_the_host_is_refused_by_the_field(url: str, bucket: str) -> None:
    with pytest.raises(Refused, match=r"^endpoint\.addressingStyle 'Virtual': bucket .* is no host; .* or use Path$"):
        open_store(f"s3://{bucket}/demo", EndpointConfig(url=url, addressing_style="Virtual"))
