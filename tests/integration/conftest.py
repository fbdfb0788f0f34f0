"""One API server with our CRDs for the whole session: it costs seconds to start and nothing to
share.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coxswain.api.crd import crds
from tests.integration.apiserver import ApiServer


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.install(crds())
        yield server


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder talks to real servers."""
    item.add_marker(pytest.mark.binaries("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "versitygw"))
