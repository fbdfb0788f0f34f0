"""Grafana dashboards of the chart, from the project's metrics: `charts/coxswain/dashboards/`.

Samples of jobs carry the labels training_job, role and index, which the chart's PodMonitor puts there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any

_WIDTH, _HEIGHT = 24, 8  # of Grafana's grid, and of a panel on it
_JOB = 'namespace="$namespace", training_job="$training_job"'
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries`: (PromQL, legend); `unit`: Grafana's name; `stat`: latest number only."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stat: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `variables`: (name, query); a query may use earlier variables."""

    uid: str
    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


def _quantiles(metric: str, where: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return tuple(
        (
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{where}}}[$__rate_interval])))",
            f"p{round(q * 100)}{f' {{{{{by}}}}}' if by else ''}",
        )
        for q in (0.5, 0.99)
    )


def _foremost(number: int, by: str, metric: str, how: str = "max", order: str = "topk", rate: bool = False) -> str:
    """Of one job's series those that are the foremost over the whole time shown. Those of each moment would be many lines: nearly
    each of a thousand equal trainers is among five at some time."""
    series = f"{metric}{{{_JOB}}}"
    now = f"rate({series}[$__rate_interval])" if rate else series
    whole = f"{'rate' if rate else 'avg_over_time'}({series}[$__range] @ end())"
    return f"{how} by ({by}) ({now}) and on ({by}) {order}({number}, {how} by ({by}) ({whole}))"


JOB = Dashboard(
    "coxswain-job",
    "Coxswain: one job",
    (
        ("namespace", "label_values(coxswain_world_generation, namespace)"),
        ("training_job", 'label_values(coxswain_world_generation{namespace="$namespace"}, training_job)'),
    ),
    (
        Panel("Step", "Last completed step.", "short", ((f"max(coxswain_step{{{_JOB}}})", ""),), stat=True),
        Panel(
            "Steps since the checkpoint", "What would be computed again if everything were lost now.", "short",
            ((f"max(coxswain_step{{{_JOB}}}) + 1 - max(coxswain_checkpoint_step{{{_JOB}}})", ""),), stat=True,
        ),
        Panel(
            "World generation", "Goes up with every change of the world: a worker or a pod was replaced.", "short",
            ((f"max(coxswain_world_generation{{{_JOB}}})", ""),), stat=True,
        ),
        Panel("Workers", "Workers alive.", "short", ((f"sum(coxswain_agent_workers{{{_JOB}}})", ""),), stat=True),
        Panel(
            "Loss", "Nats per token, of each step, and of the last evaluation on held-out documents.", "none",
            ((f"max(coxswain_loss{{{_JOB}}})", "loss"), (f"max(coxswain_evaluation_loss{{{_JOB}}})", "held out")),
        ),
        Panel("Gradient norm", "Before clipping.", "none", ((f"max(coxswain_gradient_norm{{{_JOB}}})", "norm"),)),
        Panel("Learning rate", "Of the last step.", "none", ((f"max(coxswain_learning_rate{{{_JOB}}})", "rate"),)),
        Panel(
            "Model FLOPs utilisation", "Model FLOPs of the last step over the devices' peak: nothing where the peak is unknown.",
            "percentunit", ((f"max(coxswain_model_flops_utilization{{{_JOB}}})", "MFU"),),
        ),
        Panel("Evaluation time", "Wall time of an evaluation.", "s", _quantiles("coxswain_evaluation_seconds", _JOB)),
        Panel(
            "Tokens per second", "Trained on: of all sources of the mix, and of the twelve with most in the time shown.", "short",
            (
                (f"sum(rate(coxswain_tokens_total{{{_JOB}}}[$__rate_interval]))", "all"),
                (_foremost(12, "source", "coxswain_tokens_total", "sum", rate=True), "{{source}}"),
            ),
        ),
        Panel("Step time", "Wall time of a step.", "s", _quantiles("coxswain_step_seconds", _JOB)),
        Panel(
            "Activity", "What is under way: waiting, indexing, starting, step, evaluation or save.", "short",
            ((f"max by (activity) (coxswain_activity{{{_JOB}}}) == 1", "{{activity}}"),),
        ),
        Panel(
            "Idle share", "Share of device time without compute in the last step.", "percentunit",
            ((f"max(coxswain_idle_fraction{{{_JOB}}})", "idle"),),
        ),
        Panel(
            "Slowest trainers",
            "Compute of the slowest rank over its planned compute, as a multiple of the median rank's: 1 is even. "
            "The five slowest in the time shown.", "none",
            ((_foremost(5, "trainer, node", "coxswain_trainer_slowdown"), "{{trainer}} {{node}}"),),
        ),
        Panel(
            "Compute by trainer", "Of a step, by the slowest rank of each trainer: the ten longest.", "s",
            ((_foremost(10, "trainer, node", "coxswain_trainer_compute_seconds"), "{{trainer}} {{node}}"),),
        ),
        Panel(
            "Plan over bound", "Planned makespan over a bound that no plan can beat: near 1, the plan is not to blame.", "none",
            ((f"max(coxswain_makespan_over_bound{{{_JOB}}})", "plan"),),
        ),
        Panel(
            "Steps ready", "Assembled ahead of the workers, of the ten trainers with fewest: 0 means that the data are to blame.",
            "short", ((_foremost(10, "index", "coxswain_constructor_ready_steps", "min", "bottomk"), "trainer {{index}}"),),
        ),
        Panel("Assembly", "Fetching and assembling a step.", "s", _quantiles("coxswain_constructor_assembly_seconds", _JOB)),
        Panel("Loader requests", "Time to answer for one slice.", "s", _quantiles("coxswain_loader_request_seconds", _JOB)),
        Panel(
            "Loader memory", "Samples whose pieces are in flight, of the ten loaders with most.", "bytes",
            ((_foremost(10, "index", "coxswain_loader_cache_bytes", "sum"), "loader {{index}}"),),
        ),
        Panel("Checkpoint time", "From the step boundary to the manifest.", "s", _quantiles("coxswain_checkpoint_seconds", _JOB)),
        Panel(
            "Workers that failed", "With another exit code than 0 and 3, which are orderly.", "short",
            ((f"sum(increase(coxswain_worker_failures_total{{{_JOB}}}[$__rate_interval]))", "workers"),),
        ),
        Panel(
            "Workers that ended",
            "Since the coordinator started, by trainer and exit code, the twenty most frequent: 0 and 3 are orderly, "
            "1 is tried again, 2 ends the job.",
            "short",
            (
                (_foremost(20, "trainer, exit_code", "coxswain_worker_exits_total", "sum"), "{{trainer}}: {{exit_code}}"),
            ),
        ),
    ),
)  # fmt: skip

_OPERATOR = 'namespace="$namespace"'
OPERATOR = Dashboard(
    "coxswain-operator",
    "Coxswain: operator",
    (("namespace", "label_values(coxswain_operator_leader, namespace)"),),
    (
        Panel("Leaders", "1, or for a moment 0.", "short", ((f"sum(coxswain_operator_leader{{{_OPERATOR}}})", ""),), stat=True),
        Panel(
            "Jobs", "TrainingJobs that the leader minds.", "short",
            ((f"max(coxswain_operator_jobs{{{_OPERATOR}}})", ""),), stat=True,
        ),
        Panel(
            "Longest wait", "Of a job for its pass: long under load. Only where no pass ends for 300 s does the operator end.",
            "s", ((f"max(coxswain_operator_queue_seconds{{{_OPERATOR}}})", ""),), stat=True,
        ),
        Panel(
            "Quietest watch", "Since it was heard; 180 s and more end the operator.", "s",
            ((f"max(coxswain_operator_silence_seconds{{{_OPERATOR}}})", ""),), stat=True,
        ),
        Panel(
            "Passes", "Reconcile passes by how they ended: conflicts are overtaken passes and harmless, errors are repeated.",
            "ops", ((f"sum by (result) (rate(coxswain_reconcile_total{{{_OPERATOR}}}[$__rate_interval]))", "{{result}}"),),
        ),
        Panel("Time of a pass", "Look, decide and do, for one job.", "s", _quantiles("coxswain_reconcile_seconds", _OPERATOR)),
        Panel(
            "API requests", "Answers of the API server, by method and status.", "ops",
            (
                (
                    f"sum by (method, status) (rate(coxswain_api_requests_total{{{_OPERATOR}}}[$__rate_interval]))",
                    "{{method}} {{status}}",
                ),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (JOB, OPERATOR)


def dashboard_json(dashboard: Dashboard) -> str:
    """The file that Grafana reads."""
    model = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["coxswain"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*v) for v in dashboard.variables)]},
        "panels": _placed(dashboard.panels),
    }
    return json.dumps(model, indent=1) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": name.replace("_", " "), "type": "query", "datasource": _DATASOURCE, "refresh": 2,
        "query": {"query": query, "refId": name}, "sort": 1,
    }  # fmt: skip


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Numbers in a row of four, pictures in rows of two."""
    numbers, pictures = [p for p in panels if p.stat], [p for p in panels if not p.stat]
    below, ids = (_HEIGHT // 2 if numbers else 0), count(1)
    return [
        *(_panel(p, next(ids), i % 4 * 6, i // 4 * 4, 6, 4) for i, p in enumerate(numbers)),
        *(
            _panel(p, next(ids), i % 2 * (_WIDTH // 2), below + i // 2 * _HEIGHT, _WIDTH // 2, _HEIGHT)
            for i, p in enumerate(pictures)
        ),
    ]


def _panel(panel: Panel, number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for i, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
