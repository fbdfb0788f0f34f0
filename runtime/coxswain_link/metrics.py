"""Prometheus objects of the table of metrics (coxswain.metrics)."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from coxswain.metrics import METRICS, Metric


class MetricsRegistry:
    """One service's metrics by name: `registry["coxswain_step"].set(3)`."""

    def __init__(self, service: str) -> None:
        self._collectors = CollectorRegistry()
        self._metrics = {m.name: self._build(m) for m in METRICS if m.service == service}

    def _build(self, metric: Metric) -> Any:
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self._collectors)
        kind = Counter if metric.kind == "counter" else Gauge
        built = kind(metric.name, metric.help, metric.labels, registry=self._collectors)
        for values in metric.known:
            built.labels(*values)
        return built

    def __getitem__(self, name: str) -> Any:
        return self._metrics[name]

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._collectors)


def build(service: str) -> MetricsRegistry:
    return MetricsRegistry(service)
