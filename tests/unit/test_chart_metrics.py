"""Dashboards, alerts and monitors ask only for what is there, in words that Prometheus and Grafana
understand.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coxswain.api.dashboards import DASHBOARDS, Dashboard, Panel, dashboard_json
from coxswain.metrics import METRICS, Metric
from coxswain_link.metrics import build
from coxswain_operator.children.containers import CONSTRUCTOR, COORDINATOR, LOADER, TRAINER, Service, ports
from coxswain_operator.kubernetes.connection import Connection
from coxswain_operator.workqueue import MAX_BACKOFF_SECONDS
from tests.charts import CHART, NAMESPACE, of_kind, render

pytestmark = pytest.mark.binaries("helm")

ON = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}, "rules": {"enabled": True}}
UNITS = {"short", "none", "s", "bytes", "percentunit", "ops"}
PANELS = [pytest.param(p, id=f"{d.uid}: {p.title}") for d in DASHBOARDS for p in d.panels]


def series() -> dict[str, set[str]]:
    """Every series that is exported -> its labels, those of the chart's monitors included."""
    given = {"namespace", "pod", "training_job", "role", "index", "service"}
    found = {"up": given}
    for metric in METRICS:
        labels = given | set(metric.labels)
        found |= {metric.name: labels}
        if metric.kind == "histogram":
            found |= {f"{metric.name}_{part}": labels | {"le"} for part in ("bucket", "sum", "count")}
    return found


def asked(query: str) -> Iterator[tuple[str, set[str]]]:
    """Series that a query reads, with the labels that it selects by or groups by.

    Raises ValueError where it is not PromQL.
    """
    promql_parser.parse(query)
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
    for name, selector in re.findall(r"\b((?:coxswain_\w+|up))\b(\{[^}]*\})?", query):
        yield name, grouped | set(re.findall(r"(\w+)\s*[=!]~?", selector))


def alerts(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    (rule,) = of_kind(render({"metrics": values or ON}), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def own_port(service: Service) -> str:
    """Name of the port at which the service's container serves its metrics."""
    (name,) = (port["name"] for port in ports(service) if port["containerPort"] == service.http)
    return str(name)


def unknown(query: str) -> list[str]:
    known = series()
    return [
        f"{name} {sorted(labels - known.get(name, set()))}"
        for name, labels in asked(query)
        if name not in known or not labels <= known[name]
    ]


def over(query: str) -> str:
    """With times in place of Grafana's variables of times."""
    return query.replace("$__rate_interval", "5m").replace("$__range", "3h")


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_series_that_exist(panel: Panel) -> None:
    for query, _ in panel.queries:
        assert unknown(over(query)) == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_shows_only_the_chosen_job(panel: Panel) -> None:
    assert panel.title and panel.description.endswith(".") and panel.unit in UNITS
    assert [query for query, _ in panel.queries if 'namespace="$namespace"' not in query] == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_of_a_job_of_a_thousand_trainers_and_sources_has_few_lines(panel: Panel) -> None:
    many = re.compile(r"by \([^)]*\b(trainer|index|source|node)\b")
    assert [
        q for q, _ in panel.queries if many.search(q) and not re.search(r" and on \([^)]*\) (topk|bottomk)\(\d+, ", q)
    ] == []


@pytest.mark.parametrize("panel", PANELS)
def test_the_unit_of_a_panel_is_that_of_its_metrics(panel: Panel) -> None:
    units = {"_seconds": "s", "_bytes": "bytes", "_fraction": "percentunit", "_utilization": "percentunit"}
    names = [name.removesuffix("_bucket") for query, _ in panel.queries for name, _ in asked(over(query))]
    wanted = {unit for name in names for ending, unit in units.items() if name.endswith(ending)}
    assert not wanted or wanted == {panel.unit}


@pytest.mark.parametrize("what", ["step", "checkpoint", "evaluation"])
def test_what_takes_an_hour_is_shown_as_an_hour(what: str) -> None:
    """A quantile of a histogram is at most its last bucket."""
    metrics = build("coordinator")
    metrics[f"coxswain_{what}_seconds"].observe(3600)
    text = metrics.exposition().decode()
    assert [
        f'coxswain_{what}_seconds_bucket{{le="{le}"}} {n}' in text for le, n in (("1800.0", 0.0), ("3600.0", 1.0))
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_service_exports_of_a_metric_what_the_page_of_metrics_lists_and_no_series_beside_it(metric: Metric) -> None:
    """Three hundred sources of a hundred loaders are many series already."""
    metrics = build(metric.service)
    one = metrics[metric.name]
    one = one.labels(*metric.labels) if metric.labels else one
    how = {"counter": "inc", "gauge": "set", "histogram": "observe"}[metric.kind]
    getattr(one, how)(1)
    families = text_string_to_metric_families(metrics.exposition().decode())
    found = {sample.name for family in families for sample in family.samples}
    assert [
        name for name in found if name.startswith(metric.name.removesuffix("_total")) and name not in series()
    ] == []


@pytest.mark.parametrize("service", sorted({metric.service for metric in METRICS}))
def test_a_late_gauge_has_a_series_from_its_first_value_on(service: str) -> None:
    for metric in METRICS:
        if metric.service == service and metric.late:
            metrics, line = build(service), re.compile(rf"^{metric.name} (.+)$", re.MULTILINE)
            assert not line.search(metrics.exposition().decode())
            for value in (0.0, 1.5):
                metrics[metric.name].set(value)
                assert line.findall(metrics.exposition().decode()) == [str(value)]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda d: d.uid)
def test_a_dashboard_offers_what_has_only_just_begun(dashboard: Dashboard) -> None:
    """What is offered has a series that is there from the start."""
    late = {metric.name for metric in METRICS if metric.late}
    assert [query for _, query in dashboard.variables if late & set(re.findall(r"coxswain_\w+", query))] == []


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda d: d.uid)
def test_panels_of_a_dashboard_neither_overlap_nor_leave_the_grid(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard_json(dashboard))["panels"]:
        g = panel["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells


def test_dashboards_come_as_config_maps_that_a_sidecar_finds() -> None:
    chosen = {"enabled": True, "namespace": "monitoring", "annotations": {"grafana_folder": "Training"}}
    maps = of_kind(render({"metrics": {"dashboards": chosen}}), "ConfigMap")
    assert len(maps) == len(DASHBOARDS)
    assert {m["metadata"]["namespace"] for m in maps} == {"monitoring"}
    assert {m["metadata"]["labels"]["grafana_dashboard"] for m in maps} == {"1"}
    assert {m["metadata"]["annotations"]["grafana_folder"] for m in maps} == {"Training"}
    uids = {json.loads(text)["uid"] for m in maps for text in m["data"].values()}
    assert uids == {d.uid for d in DASHBOARDS}


def test_every_alert_of_the_file_is_in_the_rule() -> None:
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert [a["alert"] for a in alerts()] == [a["alert"] for a in written]


@pytest.mark.parametrize("name", [a["alert"] for a in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())])
def test_an_alert_asks_for_series_that_exist_and_leads_to_a_page(name: str) -> None:
    (alert,) = [a for a in alerts() if a["alert"] == name]
    assert unknown(alert["expr"]) == []
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"docs/operations\.md#[a-z-]+", alert["annotations"]["runbook_url"])


def test_one_job_whose_every_pass_fails_is_enough_for_the_alert() -> None:
    """A pass waits a minute at most for the next, and up to ten seconds for each of two calls that the server fails."""
    (alert,) = [a for a in alerts() if a["alert"] == "CoxswainReconcileFails"]
    (threshold,) = re.findall(r"> ([0-9.]+)$", alert["expr"])
    call = inspect.signature(Connection).parameters["deadline"].default
    assert 1 / (MAX_BACKOFF_SECONDS + 2 * call) > float(threshold)


def test_without_a_scraped_operator_no_alert_says_that_it_is_down() -> None:
    assert "CoxswainOperatorDown" in {a["alert"] for a in alerts()}
    assert "CoxswainOperatorDown" not in {a["alert"] for a in alerts({"rules": {"enabled": True}})}


def test_the_alert_of_the_operator_selects_its_service() -> None:
    manifests = render({"metrics": ON, "fullnameOverride": "cx"})
    (service,) = of_kind(manifests, "Service")
    assert f'service="{service["metadata"]["name"]}"' in yaml.safe_dump(of_kind(manifests, "PrometheusRule"))


def test_the_service_monitor_finds_the_operators_service_and_its_port() -> None:
    manifests = render({"metrics": ON})
    (monitor,), (service,) = of_kind(manifests, "ServiceMonitor"), of_kind(manifests, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"] == NAMESPACE
    assert [e["port"] for e in monitor["spec"]["endpoints"]] == [p["name"] for p in service["spec"]["ports"]]


def test_the_pod_monitor_asks_every_service_of_a_job_at_its_port() -> None:
    (monitor,) = of_kind(render({"metrics": ON}), "PodMonitor")
    asked_at = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    assert asked_at == [own_port(service) for service in (COORDINATOR, LOADER, CONSTRUCTOR, TRAINER)]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_the_pod_monitor_looks_only_where_jobs_are_reconciled() -> None:
    (monitor,) = of_kind(render({"metrics": ON, "watchNamespaces": ["team-a"]}), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}


def test_labels_by_which_a_prometheus_selects_are_put_on_monitors_and_rules() -> None:
    labels = {"labels": {"release": "prometheus"}}
    found = of_kind(
        render({"metrics": {key: value | labels for key, value in ON.items()}}),
        "ServiceMonitor", "PodMonitor", "PrometheusRule",
    )  # fmt: skip
    assert [m["metadata"]["labels"].get("release") for m in found] == ["prometheus"] * 3
