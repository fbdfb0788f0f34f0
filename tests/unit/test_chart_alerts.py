"""What the chart's alerts say of series that Prometheus has recorded, by Prometheus' own promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coxswain.api.dashboards import JOB, Panel
from coxswain.metrics import METRICS
from coxswain_link.metrics import build
from tests.charts import CHART, NAMESPACE, of_kind, render
from tests.children import binary

pytestmark = pytest.mark.binaries("helm", "promtool")

ON = {"serviceMonitor": {"enabled": True}, "rules": {"enabled": True}}
UP = {f'up{{namespace="{NAMESPACE}",service="coxswain-metrics"}}': "1x900"}
TRAINS = "0+1x900"  # a step in every minute
Series = Mapping[str, str]


def of_job(name: str, more: str = "") -> str:
    """A series of a job; `more`: labels."""
    return f'{name}{{namespace="team-a",training_job="demo",pod="demo-coordinator-0"{more}}}'


def promtool(folder: Path, series: Series, checks: list[dict]) -> None:
    """Holds the expressions' values against what promtool computes of series with a sample a minute."""
    (rule,) = of_kind(render({"metrics": ON}), "PrometheusRule")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    recorded = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": recorded, "promql_expr_test": checks}
    written = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(written))
    command = [binary("promtool"), "test", "rules", folder / "test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_firing(folder: Path, series: Series, **expected: str) -> None:
    """`expected`: by minute, as `m40`, the name of the only alert that fires then; empty: none does. The operator is up."""
    expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
    promtool(folder, {**UP, **series}, [check(expr, minute, name) for minute, name in expected.items()])


def check(expr: str, minute: str, name: str) -> dict:
    found = [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else []
    return {"expr": expr, "eval_time": f"{minute[1:]}m", "exp_samples": found}


def test_a_healthy_job_raises_no_alert_before_its_first_checkpoint_of_six_hours(tmp_path: Path) -> None:
    series = {of_job("coxswain_step"): TRAINS, of_job("coxswain_checkpoint_step"): "0x330 330x600"}
    assert_firing(tmp_path, series, m35="", m120="", m329="", m390="", m420="")


def test_a_job_that_saves_every_hour_raises_no_alert_on_any_day(tmp_path: Path) -> None:
    saves = " ".join(f"{60 * hour}x59" for hour in range(15))
    series = {of_job("coxswain_step"): TRAINS, of_job("coxswain_checkpoint_step"): saves}
    assert_firing(tmp_path, series, m420="", m899="")


def test_a_job_that_is_created_again_under_its_name_raises_no_alert_while_it_saves(tmp_path: Path) -> None:
    """What was completed six hours ago is the former job's."""
    saves = " ".join(f"{10 * n}x9" for n in range(60))
    series = {
        of_job("coxswain_step"): "1000+1x100 _x20 0+1x600",
        of_job("coxswain_checkpoint_step"): f"1000x100 _x20 {saves}",
    }
    assert_firing(tmp_path, series, m200="", m400="", m440="")


def test_steps_that_are_in_no_checkpoint_six_hours_later_raise_the_alert(tmp_path: Path) -> None:
    series = {of_job("coxswain_step"): TRAINS, of_job("coxswain_checkpoint_step"): "0x59 60x900"}
    assert_firing(tmp_path, series, m400="", m460="CoxswainCheckpointsFail")


def test_a_job_that_waited_long_for_trainers_is_given_six_hours_of_steps_before_the_alert(tmp_path: Path) -> None:
    series = {of_job("coxswain_step"): "_x400 1+1x400", of_job("coxswain_checkpoint_step"): "0x900"}
    assert_firing(tmp_path, series, m445="", m750="", m799="CoxswainCheckpointsFail")


def test_a_job_that_stalls_after_its_very_first_step_raises_the_alert(tmp_path: Path) -> None:
    """Its series begins with that step, of number 0."""
    assert_firing(tmp_path, {of_job("coxswain_step"): "_x10 0x100"}, m24="", m45="CoxswainJobStalled")


def test_a_step_that_a_checkpoint_begins_with_is_not_in_it(tmp_path: Path) -> None:
    """That of step 60 holds the steps up to 59; step 60 was completed six hours before the alert, and then no step for long."""
    series = {
        of_job("coxswain_step"): "0+1x60 60x100 61+1x400",
        of_job("coxswain_checkpoint_step"): "0x59 60x600",
    }
    assert_firing(tmp_path, series, m400="", m470="CoxswainCheckpointsFail")


def test_a_job_that_has_stalled_for_hours_raises_the_one_alert_and_not_that_of_its_checkpoints(tmp_path: Path) -> None:
    series = {of_job("coxswain_step"): "0+1x60 60x700", of_job("coxswain_checkpoint_step"): "0x59 60x700"}
    assert_firing(tmp_path, series, m120="CoxswainJobStalled", m600="CoxswainJobStalled")


@pytest.mark.parametrize(("activity", "name"), [("evaluation", ""), ("save", ""), ("step", "CoxswainJobStalled")])
def test_an_evaluation_or_a_save_of_an_hour_raises_no_alert_and_a_step_of_an_hour_does(
    tmp_path: Path, activity: str, name: str
) -> None:
    series = {
        of_job("coxswain_step"): "0+1x60 60x60 61+1x60",
        of_job("coxswain_activity", f',activity="{activity}"'): "0x60 1x60 0x60",
        of_job("coxswain_activity", ',activity="waiting"'): "0x180",
    }
    assert_firing(tmp_path, series, m95=name, m118=name, m140="")


def test_a_job_that_does_no_step_after_a_long_save_raises_the_alert_a_quarter_of_an_hour_later(tmp_path: Path) -> None:
    series = {
        of_job("coxswain_step"): "0+1x60 60x120",
        of_job("coxswain_activity", ',activity="save"'): "0x60 1x60 0x60",
    }
    assert_firing(tmp_path, series, m119="", m130="", m140="CoxswainJobStalled")


def test_a_job_that_stalls_under_a_new_coordinator_raises_the_alert_half_an_hour_later(tmp_path: Path) -> None:
    series = {of_job("coxswain_step"): "2x900", of_job("coxswain_checkpoint_step"): "3x900"}
    assert_firing(tmp_path, series, m20="", m32="CoxswainJobStalled")


def test_crashes_of_different_trainers_raise_the_alert(tmp_path: Path) -> None:
    """Each of them begins a series of the labelled metric with a 1, which is no increase to Prometheus."""
    failures = {of_job("coxswain_worker_failures_total"): "0x5 1 2 3 4 5x30"}
    exits = {
        of_job("coxswain_worker_exits_total", f',trainer="trainer-{i}",exit_code="1"'): "_ " * (6 + i) + "1x30"
        for i in range(5)
    }
    assert_firing(tmp_path, {**failures, **exits}, m5="", m15="CoxswainWorkersCrash", m45="")


def test_three_crashes_in_half_an_hour_raise_no_alert(tmp_path: Path) -> None:
    assert_firing(tmp_path, {of_job("coxswain_worker_failures_total"): "0x5 1x3 2x3 3x60"}, m15="", m30="")


def test_three_crashes_in_half_an_hour_raise_no_alert_whatever_came_before(tmp_path: Path) -> None:
    """`increase` counts more of them: it goes beyond the samples, to both ends of its time."""
    series = {of_job("coxswain_worker_failures_total"): "1x60 2 3 4x60"}
    assert_firing(tmp_path, series, **{f"m{minute}": "" for minute in range(55, 100)})


def of_two_coordinators(name: str, first: str, second: str) -> dict[str, str]:
    """The series of a job whose coordinator's pod is replaced."""
    series = of_job(name)
    return {series: first, series.replace("coordinator-0", "coordinator-1"): second}


def test_crashes_count_on_under_a_new_coordinator_whose_counter_begins_at_0(tmp_path: Path) -> None:
    series = of_two_coordinators("coxswain_worker_failures_total", "0 0 1 2 2x3", "_x8 0 0 1 2 2x60")
    assert_firing(tmp_path, series, m7="", m20="CoxswainWorkersCrash", m60="")


def test_steps_that_are_in_no_checkpoint_raise_the_alert_though_a_new_coordinator_has_come_meanwhile(
    tmp_path: Path,
) -> None:
    """It begins with the step of the last checkpoint, and so does its series."""
    steps = of_two_coordinators("coxswain_step", "0+1x300", "_x301 59x2 60+1x500")
    saved = of_two_coordinators("coxswain_checkpoint_step", "0x59 60x240", "_x301 60x502")
    assert_firing(tmp_path, {**steps, **saved}, m400="", m470="CoxswainCheckpointsFail")


def test_a_job_under_a_new_coordinator_every_ten_minutes_that_completes_no_step_raises_the_alert(
    tmp_path: Path,
) -> None:
    """Each begins with the step of the last checkpoint: that is no new step."""
    series: dict[str, str] = {}
    for number in range(6):
        pod = f"coordinator-{number}"
        for name, value in (("coxswain_step", 59), ("coxswain_checkpoint_step", 60)):
            series[of_job(name).replace("coordinator-0", pod)] = f"_x{10 * number} {value}x9 stale"
    assert_firing(tmp_path, series, m25="", m35="CoxswainJobStalled", m55="CoxswainJobStalled")


def test_a_job_that_is_gone_after_twenty_minutes_without_a_step_raises_no_alert_afterwards(tmp_path: Path) -> None:
    """It was deleted or suspended, or its last checkpoint took that long: no coordinator answers."""
    names = ("coxswain_step", "coxswain_checkpoint_step")
    series = {of_job(name): "0+1x60 60x20 stale" for name in names}
    assert_firing(tmp_path, series, **{f"m{minute}": "" for minute in range(60, 120)})


def test_an_alert_of_a_stalled_job_ends_soon_after_the_job(tmp_path: Path) -> None:
    series = {of_job(name): "0+1x60 60x60 stale" for name in ("coxswain_step", "coxswain_checkpoint_step")}
    assert_firing(tmp_path, series, m119="CoxswainJobStalled", m127="", m140="")


def test_an_operator_that_is_down_raises_the_alert_beside_another_release_of_its_name(tmp_path: Path) -> None:
    other = {'up{namespace="elsewhere",service="coxswain-metrics"}': "1x60"}
    down = dict.fromkeys(UP, "1x10 0x50")
    assert_firing(tmp_path, {**other, **down}, m10="", m20="CoxswainOperatorDown")


def test_an_operator_that_is_down_raises_the_alert_after_five_minutes(tmp_path: Path) -> None:
    assert_firing(tmp_path, dict.fromkeys(UP, "1x10 0x50"), m15="", m16="CoxswainOperatorDown")


def of_operators(*leaders: str, namespace: str = "ops") -> dict[str, str]:
    """The series of each pod of a release: whether it leads."""
    head = f'coxswain_operator_leader{{namespace="{namespace}",pod="'
    return {f'{head}{number}"}}': values for number, values in enumerate(leaders)}


def test_a_release_without_a_leader_raises_the_alert_after_three_minutes_beside_one_that_has_a_leader(
    tmp_path: Path,
) -> None:
    other = of_operators("1x60", "0x60", namespace="elsewhere")
    assert_firing(tmp_path, {**other, **of_operators("1x10 0x50", "0x60")}, m13="", m14="CoxswainNobodyLeads")


def test_a_hand_over_of_the_lease_within_three_minutes_raises_no_alert(tmp_path: Path) -> None:
    assert_firing(tmp_path, of_operators("1x9 0x50", "0x11 1x48"), m11="", m12="", m14="", m20="")


def passes_of(result: str, values: str) -> dict[str, str]:
    return {f'coxswain_reconcile_total{{namespace="ops",pod="0",result="{result}"}}': values}


@pytest.mark.parametrize(("errors", "name"), [(7, "CoxswainReconcileFails"), (5, "")])
def test_more_than_six_failed_passes_in_ten_minutes_raise_the_alert_once_that_lasts_a_quarter_of_an_hour(
    tmp_path: Path, errors: int, name: str
) -> None:
    tenth = " ".join(f"{errors * n / 10}" for n in range(61))
    series = passes_of("error", tenth) | passes_of("ok", "0+60x60") | passes_of("conflict", "0+60x60")
    assert_firing(tmp_path, series, m20="", m30=name, m50=name)


@pytest.mark.parametrize(("crashes", "name"), [(3, ""), (4, "CoxswainWorkersCrash")])
def test_the_fourth_crash_of_a_job_within_half_an_hour_raises_the_alert_whatever_other_jobs_do(
    tmp_path: Path, crashes: int, name: str
) -> None:
    counted = " ".join(map(str, range(crashes + 1)))
    other = 'coxswain_worker_failures_total{namespace="team-a",training_job="other",pod="o"}'
    series = {of_job("coxswain_worker_failures_total"): f"{counted} {crashes}x60", other: "0 1 2 3x60"}
    assert_firing(tmp_path, series, m12=name, m60="")


def alerts() -> list[dict]:
    written: list[dict] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return written


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_names_only_labels_that_its_expression_keeps_and_every_job_that_it_is_about(alert: dict) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", alert["summary"] + alert["description"]))
    kept = [set(found.split(", ")) for found in re.findall(r" by \(([^)]*)\)", alert["expr"])]
    assert all(named <= labels for labels in kept) and (kept or not named)
    assert named >= {"namespace", "training_job"} or "training_job" not in alert["expr"]


def test_an_alert_is_critical_where_no_job_is_looked_after_and_else_a_warning() -> None:
    critical = {a["alert"] for a in alerts() if a["severity"] == "critical"}
    assert critical == {"CoxswainOperatorDown", "CoxswainNobodyLeads"}
    assert {a["severity"] for a in alerts()} == {"critical", "warning"}


def test_a_trainer_without_data_raises_the_alert_once_there_is_a_world_and_not_before(tmp_path: Path) -> None:
    """A step a quarter of an hour is so little that no other alert is due."""
    slow = " ".join(f"{2 + n}x12" for n in range(30))
    series = {
        of_job("coxswain_step"): slow,
        of_job("coxswain_checkpoint_step"): "3x390",
        of_job("coxswain_world_generation"): "0x60 1x300",
        of_job("coxswain_constructor_ready_steps", ',index="0"'): "0x390",
        of_job("coxswain_constructor_ready_steps", ',index="1"'): "4x390",
    }
    assert_firing(tmp_path, series, m50="", m80="CoxswainDataStarved")


def test_a_trainer_that_has_a_step_ready_now_and_then_raises_no_alert(tmp_path: Path) -> None:
    series = {
        of_job("coxswain_step"): "0+1x390",
        of_job("coxswain_checkpoint_step"): "0+1x390",
        of_job("coxswain_world_generation"): "1x390",
        of_job("coxswain_constructor_ready_steps", ',index="0"'): " ".join(["0x9 1"] * 39),
    }
    assert_firing(tmp_path, series, m80="", m200="")


CHOSEN = {"$namespace": "team-a", "$training_job": "demo", "$__rate_interval": "5m", "$__range": "30m"}


def chosen(query: str) -> str:
    """As Grafana asks it for the job."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    return query


def panel_checks(title: str, *expected: dict[str, float]) -> list[dict]:
    """After ten minutes, of each query of a panel: values by labels, to three digits."""
    (panel,) = (p for p in JOB.panels if p.title == title)
    found = []
    for (query, _), values in zip(panel.queries, expected, strict=True):
        query = chosen(query)
        samples = [{"labels": labels, "value": value} for labels, value in values.items()]
        found.append({"expr": f"round({query}, 0.001)", "eval_time": "10m", "exp_samples": samples})
    return found


def test_panels_add_up_pods_and_sources_and_show_the_extremes_of_trainers(tmp_path: Path) -> None:
    series = {
        of_job("coxswain_tokens_total", ',source="code"'): "0+600x20",
        of_job("coxswain_tokens_total", ',source="docs"'): "0+300x20",
    }
    for n in range(12):
        series[of_job("coxswain_agent_workers", f',index="{n}"')] = f"{n}x20"
        series[of_job("coxswain_constructor_ready_steps", f',index="{n}"')] = f"{n}x20"
        series[of_job("coxswain_trainer_slowdown", f',trainer="t{n}",node="n"')] = f"{n}x20"
    for most, count in (("1", 90), ("2", 98), ("5", 100), ("+Inf", 100)):
        series[of_job("coxswain_step_seconds_bucket", f',le="{most}"')] = f"0+{count}x20"
    checks = [
        *panel_checks("Tokens per second", {"{}": 15.0}, {'{source="code"}': 10.0, '{source="docs"}': 5.0}),
        *panel_checks("Workers", {"{}": 66.0}),
        *panel_checks("Steps ready", {f'{{index="{n}"}}': float(n) for n in range(10)}),
        *panel_checks("Slowest trainers", {f'{{trainer="t{n}",node="n"}}': float(n) for n in range(7, 12)}),
        *panel_checks("Step time", {"{}": 0.556}, {"{}": 3.5}),
    ]
    promtool(tmp_path, series, checks)


MANY = {
    "Tokens per second": ("coxswain_tokens_total", "source"),
    "Slowest trainers": ("coxswain_trainer_slowdown", "trainer"),
    "Compute by trainer": ("coxswain_trainer_compute_seconds", "trainer"),
    "Steps ready": ("coxswain_constructor_ready_steps", "index"),
    "Loader memory": ("coxswain_loader_cache_bytes", "index"),
    "Workers that ended": ("coxswain_worker_exits_total", "trainer"),
}


@pytest.mark.parametrize("panel", [p for p in JOB.panels if p.title in MANY], ids=lambda panel: panel.title)
def test_a_picture_of_many_has_as_many_lines_as_it_says_though_others_are_the_foremost_in_each_minute(
    tmp_path: Path, panel: Panel
) -> None:
    """Forty take turns: each is far ahead for one minute, and far behind for another."""
    (metric, label), (query, _) = MANY[panel.title], panel.queries[-1]
    turns = range(80)
    series = {}
    for n in range(40):
        values, total = [], 100
        for minute in turns:
            total += {n: 1000, (n + 20) % 40: 0}.get(minute % 40, 10)
            values.append(total if metric.endswith("_total") else {n: 200, (n + 20) % 40: 1}.get(minute % 40, 100))
        series[of_job(metric, f',{label}="{n}"')] = " ".join(map(str, values))
    number = int(re.search(r"(?:topk|bottomk)\((\d+),", query)[1])  # type: ignore[index]
    lines = f"count(count_over_time(({chosen(query)})[30m:1m]))"
    promtool(
        tmp_path, series, [{"expr": lines, "eval_time": "60m", "exp_samples": [{"labels": "{}", "value": number}]}]
    )


def test_of_many_those_are_shown_that_were_the_foremost_over_the_whole_time(tmp_path: Path) -> None:
    """Six trainers, of which one was as fast as the others but for its last minute."""
    series = {
        of_job("coxswain_trainer_slowdown", f',trainer="t{n}",node="n"'): f"1.{n}x60" if n else "1x59 1.4"
        for n in range(6)
    }
    (panel,) = (p for p in JOB.panels if p.title == "Slowest trainers")
    ((query, _),) = panel.queries
    samples = [{"labels": f'{{trainer="t{n}",node="n"}}', "value": float(f"1.{n}")} for n in range(1, 6)]
    promtool(tmp_path, series, [{"expr": chosen(query), "eval_time": "59m", "exp_samples": samples}])


@pytest.mark.parametrize(("step", "saved", "lost"), [(2, 3, 0), (5, 3, 3)])
def test_the_panel_counts_the_steps_that_no_checkpoint_holds(tmp_path: Path, step: int, saved: int, lost: int) -> None:
    (panel,) = (p for p in JOB.panels if p.title == "Steps since the checkpoint")
    ((query, _),) = panel.queries
    series = {of_job("coxswain_step"): f"{step}x5", of_job("coxswain_checkpoint_step"): f"{saved}x5"}
    promtool(
        tmp_path, series, [{"expr": chosen(query), "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": lost}]}]
    )


def counters_of_thresholds() -> list[tuple[str, str]]:
    """(counter, its selector) of each alert that compares a rate or an increase."""
    return [
        found
        for alert in alerts()
        for found in re.findall(r"(?:rate|increase|max_over_time)\((\w+_total)(\{[^}]*\})?\[", alert["expr"])
    ]


@pytest.mark.parametrize(("counter", "selector"), counters_of_thresholds())
def test_a_counter_whose_increase_raises_an_alert_has_its_series_from_the_start(counter: str, selector: str) -> None:
    """Prometheus sees no increase in the first sample of a series."""
    (service,) = {metric.service for metric in METRICS if metric.name == counter}
    families = text_string_to_metric_families(build(service).exposition().decode())
    series = [sample for family in families for sample in family.samples if sample.name == counter]
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector)).items()
    assert [sample.value for sample in series if wanted <= sample.labels.items()] == [0.0]
