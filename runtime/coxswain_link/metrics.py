"""Prometheus objects of the table of metrics (coxswain.metrics)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from coxswain.metrics import METRICS, Metric


class LateGauge:
    """A gauge without labels that has no series before its first value."""

    def __init__(self, gauge: Gauge, collectors: CollectorRegistry) -> None:
        self._gauge, self._collectors, self._is_there = gauge, collectors, False

    def set(self, value: float) -> None:
        """Not from several threads at a time."""
        self._gauge.set(value)
        if not self._is_there:
            self._collectors.register(self._gauge)
            self._is_there = True


class _Listed(Collector):
    """Without the library's `_created`, a further series for each of a counter and a histogram: Prometheus does not read it."""

    def __init__(self, collectors: CollectorRegistry) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Family]:
        for family in self._collectors.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class MetricsRegistry:
    """One service's metrics by name: `registry["coxswain_step"].set(3)`."""

    def __init__(self, service: str) -> None:
        self._collectors = CollectorRegistry()
        self._metrics = {m.name: self._build(m) for m in METRICS if m.service == service}

    def _build(self, metric: Metric) -> Any:
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self._collectors)
        if metric.late:
            return LateGauge(Gauge(metric.name, metric.help, registry=None), self._collectors)
        kind = Counter if metric.kind == "counter" else Gauge
        built = kind(metric.name, metric.help, metric.labels, registry=self._collectors)
        for values in metric.known:
            built.labels(*values)
        return built

    def __getitem__(self, name: str) -> Any:
        return self._metrics[name]

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(_Listed(self._collectors))


def build(service: str) -> MetricsRegistry:
    return MetricsRegistry(service)
