"""A real Prometheus on an address of its own, which scrapes as the chart's monitors and relabelings say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from coxswain.api.dashboards import Dashboard, Panel
from tests.charts import Manifest
from tests.children import Child, ReservedPort, binary, own_address

POD_LABEL = "__meta_kubernetes_pod_label_coxswain_dev_"
# What the Prometheus operator's scrape jobs take from Kubernetes whatever a monitor says.
ALWAYS = {
    "namespace": "__meta_kubernetes_namespace",
    "pod": "__meta_kubernetes_pod_name",
    "service": "__meta_kubernetes_service_name",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A port of a pod as Kubernetes' discovery describes it. `labels`: those whose names begin with `__meta`."""

    port: str
    address: str
    labels: Mapping[str, str]


def scrape_configs(endpoints: Iterable[Manifest], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """What a PodMonitor's or a ServiceMonitor's endpoints ask for: a job for each, of the targets with its port."""
    found = list(targets)
    return [
        {
            "job_name": endpoint["port"],
            "metrics_path": endpoint["path"],
            "static_configs": [
                {"targets": [t.address], "labels": dict(t.labels)} for t in found if t.port == endpoint["port"]
            ],
            "relabel_configs": [
                *({"source_labels": [source], "target_label": label} for label, source in ALWAYS.items()),
                *(
                    {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
                    for each in endpoint.get("relabelings", ())
                ),
            ],
        }
        for endpoint in endpoints
    ]


class Prometheus:
    """Scrapes and evaluates every second, in a folder. Use it as a context manager."""

    def __init__(self, folder: Path, scrapes: list[dict[str, Any]], rules: Manifest) -> None:
        self._port = ReservedPort(own_address())
        address = f"{own_address()}:{self._port.number}"
        self._http = httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30)
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": scrapes}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._command = [
            binary("prometheus"), "--config.file", folder / "prometheus.yaml", "--storage.tsdb.path", folder / "data",
            "--web.listen-address", address,
        ]  # fmt: skip
        self._log = folder / "prometheus.log"

    def __enter__(self) -> Prometheus:
        self.child = Child(self._command, self._log)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self.child.stop()

    def query(self, query: str) -> list[dict[str, Any]]:
        """The samples of an instant vector, each with `metric` (its labels) and `value`."""
        found: list[dict[str, Any]] = self._get("query", query=query)["result"]
        return found

    def values_of(self, label: str, series: str) -> list[str]:
        """As Grafana's `label_values`."""
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Each with its name, state and health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def wait_for(self, series: str) -> None:
        """Until there are twelve scrapes of a series: a rate over 10 s has several."""
        self.child.wait_until(lambda: self.has(f"count_over_time({series}[1m]) > 12"), 120)

    def has(self, query: str) -> bool:
        """Whether it serves and a query has a sample now."""
        try:
            return bool(self.query(query))
        except httpx.TransportError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code in (200, 503), answer.text  # 503: not started
        return answer.json()["data"] if answer.status_code == 200 else {"result": [], "groups": []}


def chosen(query: str) -> str:
    """As Grafana asks it for the job, or for its operator."""
    for variable, value in {
        "$namespace": "team-a",
        "$training_job": "small",
        "$__rate_interval": "10s",
        "$__range": "30s",
    }.items():
        query = query.replace(variable, value)
    return query


def empty_of(prometheus: Prometheus, panel: Panel) -> int:
    """How many of the panel's queries have no sample."""
    return sum(not prometheus.query(chosen(query)) for query, _ in panel.queries)


def variables(dashboard: Dashboard) -> list[tuple[str, str]]:
    """(series, label) of each variable."""
    return [re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups() for _, query in dashboard.variables]  # type: ignore[union-attr]
