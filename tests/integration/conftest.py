"""One API server with our CRDs for all tests here: it costs seconds to start and nothing to share. It ends with them,
so that its time counts to this folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coxswain.api.crd import crds
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
