"""A real Prometheus scrapes a real run as the chart's monitors say: what the dashboards and alerts find there."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coxswain.api.dashboards import JOB, Panel
from coxswain_operator.children.containers import CONSTRUCTOR, COORDINATOR, LOADER, TRAINER
from tests.charts import of_kind, render
from tests.integration.prometheus import POD_LABEL, Prometheus, Target, chosen, empty_of, scrape_configs, variables
from tests.local.jobs import ENDLESS, Run, find_service, job_objects, wait_for_step, wait_until, write_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.binaries("helm", "prometheus"),
]

EMPTY = {"Model FLOPs utilisation", "Workers that ended"}  # no peak of a CPU is known, and none has ended


def targets(cox: subprocess.Popen[str]) -> list[Target]:
    """Every service of the run, with the labels that its pod has on Kubernetes."""
    services = (COORDINATOR, LOADER, CONSTRUCTOR, TRAINER)
    return [target(cox, service.module, service.name, service.http) for service in services]


def target(cox: subprocess.Popen[str], module: str, port: str, number: int) -> Target:
    pid = wait_until(lambda: find_service(cox, module), f"a process of {module}")
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    environment = dict(entry.partition("=")[::2] for entry in entries)
    job, role, index = environment["POD_NAME"].split("-")[:3]
    labels = {POD_LABEL + "job": job, POD_LABEL + "role": role, POD_LABEL + "index": index}
    known = {"__meta_kubernetes_namespace": "team-a", "__meta_kubernetes_pod_name": environment["POD_NAME"]}
    return Target(port, f"{environment['POD_IP']}:{number}", labels | known)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("watched")
    write_corpus(folder / "corpus")
    more = {"stop": {"steps": ENDLESS}, "evaluation": {"everySteps": 3, "tokens": 700}}
    run = Run(folder, job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints", **more))
    cox = run.start()
    try:
        wait_for_step(run, cox, 3)
        (monitor,) = of_kind(render({"metrics": {"podMonitor": {"enabled": True}}}), "PodMonitor")
        (rule,) = of_kind(render({"metrics": {"rules": {"enabled": True}}}), "PrometheusRule")
        scrapes = scrape_configs(monitor["spec"]["podMetricsEndpoints"], targets(cox))
        with Prometheus(folder, scrapes, rule["spec"]) as prometheus:
            prometheus.wait_for("coxswain_step")
            yield prometheus
    finally:
        cox.send_signal(signal.SIGINT)
        run.finish(cox)


@pytest.mark.parametrize("panel", JOB.panels, ids=lambda panel: panel.title)
def test_every_query_of_a_panel_has_samples_of_a_run(watched: Prometheus, panel: Panel) -> None:
    assert empty_of(watched, panel) == (len(panel.queries) if panel.title in EMPTY else 0)


@pytest.mark.parametrize("panel", JOB.panels, ids=lambda panel: panel.title)
def test_every_sample_of_a_panel_has_the_labels_of_its_legend(watched: Prometheus, panel: Panel) -> None:
    for query, legend in panel.queries:
        named = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert [s["metric"] for s in watched.query(chosen(query)) if not named <= s["metric"].keys()] == []


def test_the_variables_of_the_dashboard_offer_the_namespace_and_the_job(watched: Prometheus) -> None:
    offered = [watched.values_of(label, chosen(series)) for series, label in variables(JOB)]
    assert offered == [["team-a"], ["small"]]


def test_every_service_of_a_run_is_scraped_without_an_error(watched: Prometheus) -> None:
    up = watched.query("up")
    assert {s["metric"]["job"]: s["value"][1] for s in up} == dict.fromkeys(
        ("coordinator", "loader", "constructor", "trainer"), "1"
    )


def test_every_alert_can_be_computed_and_none_fires_on_a_healthy_run(watched: Prometheus) -> None:
    rules = watched.rules()
    assert rules
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
