"""A real Prometheus scrapes an operator as the chart's ServiceMonitor says: what its dashboard finds there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coxswain.api.dashboards import OPERATOR, Panel
from tests.charts import of_kind, render
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import apply_all, new_namespace
from tests.integration.processes import health_address, operator
from tests.integration.prometheus import Prometheus, Target, empty_of, scrape_configs, variables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.binaries("helm", "prometheus")]


@pytest.fixture(scope="module")
def of_operator(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """What is recorded of an operator that has a job."""
    folder, namespace = tmp_path_factory.mktemp("operator"), new_namespace(api)
    own = ("--namespace", namespace, "--operator-namespace", namespace)
    child = operator(api.kubeconfig, folder / "operator.log", *own)
    try:
        apply_all(api, namespace)
        (monitor,) = of_kind(render({"metrics": {"serviceMonitor": {"enabled": True}}}), "ServiceMonitor")
        known = {"__meta_kubernetes_namespace": "team-a", "__meta_kubernetes_pod_name": "operator-0"}
        scrapes = scrape_configs(monitor["spec"]["endpoints"], [Target("http", health_address(child), known)])
        with Prometheus(folder, scrapes, {"groups": []}) as prometheus:
            prometheus.wait_for("coxswain_operator_jobs")
            yield prometheus
    finally:
        child.stop()


@pytest.mark.parametrize("panel", OPERATOR.panels, ids=lambda panel: panel.title)
def test_every_query_of_a_panel_has_samples_of_an_operator(of_operator: Prometheus, panel: Panel) -> None:
    assert empty_of(of_operator, panel) == 0


def test_the_variable_of_the_operators_dashboard_offers_its_namespace(of_operator: Prometheus) -> None:
    assert [of_operator.values_of(label, series) for series, label in variables(OPERATOR)] == [["team-a"]]
