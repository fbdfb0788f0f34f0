"""One API server with our CRDs for all tests here: it costs seconds to start and nothing to share. It ends with them,
so that its time counts to this folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coxswain.api.crd import crds
from coxswain.names import ENV_STORE_PATIENCE
from tests.integration.apiserver import ApiServer
from tests.integration.scene import Scene, staged
from tests.s3server import S3Server


@pytest.fixture(scope="package")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.install(crds())
        yield server


@pytest.fixture(scope="module")
def runs() -> Iterator[S3Server]:
    """An S3 server with the bucket `runs`."""
    with S3Server() as server:
        server.bucket("runs")
        yield server


@pytest.fixture(scope="module")
def scene(api: ApiServer, runs: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with staged(api, runs, tmp_path_factory.mktemp("whole")) as found:
        yield found


@pytest.fixture
def keys(runs: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own credentials for the bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", runs.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", runs.secret_key)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder talks to real servers."""
    item.add_marker(pytest.mark.binaries("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "versitygw"))


@pytest.fixture
def own_access_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes this machine's own keys and authorities of S3 servers; a store does not wait."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "SSL_CERT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv(ENV_STORE_PATIENCE, "0")
