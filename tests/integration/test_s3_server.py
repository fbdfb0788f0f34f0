"""The S3 server of the tests behaves like S3 in what the store relies on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from coxswain.config import EndpointConfig
from coxswain_link.store import open_store
from tests.s3server import S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def test_an_object_comes_back_as_it_was_put(s3: S3Server) -> None:
    client, bucket = s3.client(), s3.bucket("round-trip")
    client.put_object(Bucket=bucket, Key="a/b", Body=b"rowers")
    assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"rowers"


def test_a_second_conditional_create_is_refused(s3: S3Server) -> None:
    client, bucket = s3.client(), s3.bucket("create-only")
    client.put_object(Bucket=bucket, Key="claim", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="claim", Body=b"second", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="claim")["Body"].read() == b"first"


def test_a_listing_below_an_object_is_empty(s3: S3Server) -> None:
    """As of a source that names one file: the server answers keys below it otherwise than keys that are not there."""
    bucket = s3.bucket("one-file")
    s3.client().put_object(Bucket=bucket, Key="tokenizer.json", Body=b"{}")
    endpoint = EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="s3")
    store = open_store(f"s3://{bucket}/tokenizer.json", endpoint, s3.secrets_dir, patience=0.0)
    assert store.list() == []


def test_the_server_is_gone_after_its_block() -> None:
    with S3Server() as server:
        pid, folder = server.pid, server.secrets_dir.parent
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
