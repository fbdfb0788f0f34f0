"""One API server with our CRDs for all tests here: it costs seconds to start and nothing to share. It ends with them,
so that its time counts to this folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coxswain.api.crd import crds
from tests.integration.apiserver import ApiServer


@pytest.fixture(scope="package")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.install(crds())
        yield server


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder talks to real servers."""
    item.add_marker(pytest.mark.binaries("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "versitygw"))
