"""One provisioned cluster for all tests, a namespace for each, and a diagnosis when one fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from e2e.baseline import cox_run
from e2e.cluster import preflight
from e2e.cluster.cluster import Cluster
from e2e.cluster.process import REPOSITORY
from e2e.diagnosis import diagnose
from e2e.job import MOST_STEPS, Digests, Job, small_objects
from e2e.provision import Site, provision

FOLDER = REPOSITORY / ".cache" / "e2e"
_SITE = pytest.StashKey[Site]()
_BUILD_SECONDS = 2400  # of the images on a fresh clone, with the cluster's start: some 10 minutes on a slow machine


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Without the operator: see `operator`."""
    if missing := preflight.lacks(preflight.look(), FOLDER, preflight.BUILDERS):
        pytest.exit("this machine cannot run nodes:\n" + "\n".join(missing), returncode=2)
    with _cluster(request.config.getoption("--cluster")) as cluster:
        request.config.stash[_SITE] = made = provision(cluster)
        yield made


def _cluster(running: Path | None) -> AbstractContextManager[Cluster]:
    return nullcontext(Cluster(running)) if running else Cluster(FOLDER)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cluster", type=Path, help="folder of a running test cluster to use, and to leave running")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the first test that needs the cluster the time to build it, beside its own."""
    first = next((item for item in items if "site" in getattr(item, "fixturenames", ())), None)
    if first is not None:
        own = first.get_closest_marker("timeout")
        first.add_marker(pytest.mark.timeout(_BUILD_SECONDS + (own.args[0] if own else 0)), append=False)


@pytest.fixture(scope="session")
def operator(site: Site) -> Site:
    """The site with the operator installed."""
    site.install()
    return site


@pytest.fixture
def job(operator: Site, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job in a namespace of its own. Nothing is applied yet."""
    made = _job(operator, request)
    operator.kubectl("create", "namespace", made.namespace)
    yield made
    operator.kubectl("delete", "namespace", made.namespace, "--timeout=120s")


@pytest.fixture
def job_without_namespace(operator: Site, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job whose namespace the test makes."""
    made = _job(operator, request)
    yield made
    operator.kubectl("delete", "namespace", made.namespace, "--timeout=120s")


def _job(operator: Site, request: pytest.FixtureRequest) -> Job:
    """Its namespace is named after the test."""
    namespace = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").strip("]")[:50].strip("-")
    shutil.rmtree(operator.store / "runs" / namespace, ignore_errors=True)  # of an earlier run on this cluster
    return Job(operator, namespace, "stdlib", namespace)


@pytest.fixture(scope="session")
def baseline(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """Digests by step that every run of `small_objects` must have, whatever faults it meets."""
    objects = small_objects(site, "baseline", MOST_STEPS)
    return cox_run(tmp_path_factory.mktemp("baseline"), objects, site.store)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and call.when in ("setup", "call") and (site := item.config.stash.get(_SITE, None)) is not None:
        report.sections.append(("the cluster", diagnose(site)))
    return report
