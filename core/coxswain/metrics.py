"""Every Prometheus metric of the project. Services and `docs/metrics.md` are built from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: `service` exports it; units are in the name.

    `known`: values of the labels, each with a series from the start. A series that begins at its first event lacks that event
    in `rate` and `increase`. `late`: no series before the first value, of a gauge whose 0 would be a wrong number.
    """

    service: str
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()
    late: bool = False


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_LONG = (*_SECONDS, 300, 600, 1200, 1800, 3600, 7200)
"""For what takes hours on large models. A quantile never exceeds the last bucket."""

METRICS: tuple[Metric, ...] = (
    Metric("coordinator", "coxswain_step", "gauge", "Last completed step.", late=True),
    Metric("coordinator", "coxswain_tokens_total", "counter", "Tokens trained on.", ("source",)),
    Metric("coordinator", "coxswain_loss", "gauge", "Loss of the last completed step.", late=True),
    Metric(
        "coordinator",
        "coxswain_evaluation_loss",
        "gauge",
        "Loss of the last evaluation, over so many tokens of held-out documents. Absent before the first one.",
        ("tokens",),
    ),
    Metric("coordinator", "coxswain_evaluation_seconds", "histogram", "Wall time of an evaluation.", (), _LONG),
    Metric(
        "coordinator",
        "coxswain_gradient_norm",
        "gauge",
        "Norm of the last step's gradient, before clipping.",
        late=True,
    ),
    Metric("coordinator", "coxswain_learning_rate", "gauge", "Learning rate of the last step.", late=True),
    Metric(
        "coordinator",
        "coxswain_model_flops_utilization",
        "gauge",
        "Model FLOPs of the last step over the devices' peak. Absent where the peak is unknown, as on cpu.",
        ("hardware",),
    ),
    Metric(
        "coordinator",
        "coxswain_activity",
        "gauge",
        "1 for what the job does now, 0 for the rest. save: ranks wait for a checkpoint. evaluation: with the step before it.",
        ("activity",),
        known=(("waiting",), ("indexing",), ("starting",), ("step",), ("evaluation",), ("save",)),
    ),
    Metric("coordinator", "coxswain_step_seconds", "histogram", "Wall time of a step.", (), _LONG),
    Metric(
        "coordinator",
        "coxswain_idle_fraction",
        "gauge",
        "Measured share of device time without compute in the last step.",
        late=True,
    ),
    Metric(
        "coordinator",
        "coxswain_makespan_over_bound",
        "gauge",
        "Planned makespan of the last step over its lower bound.",
        late=True,
    ),
    Metric(
        "coordinator",
        "coxswain_planned_step_seconds",
        "gauge",
        "Wall time of the last step as the cost model predicts it: makespan, reduction and update.",
        late=True,
    ),
    Metric(
        "coordinator",
        "coxswain_cost_model_error",
        "gauge",
        "Median over the latest 20 steps of how far that is from the measured wall time, as a share of the latter.",
        late=True,
    ),
    Metric("coordinator", "coxswain_planner_seconds", "histogram", "Time to place one step.", (), _SECONDS),
    Metric(
        "coordinator",
        "coxswain_planned_steps_total",
        "counter",
        "Steps planned, by the balance that really planned them: the fall-back's, where the job's was late.",
        ("balance",),
    ),
    Metric("coordinator", "coxswain_world_generation", "gauge", "Current world generation."),
    Metric("coordinator", "coxswain_committed_step", "gauge", "Last step committed in the plan log.", late=True),
    Metric(
        "coordinator",
        "coxswain_checkpoint_step",
        "gauge",
        "Step of the last complete checkpoint; 0: none yet.",
        late=True,
    ),
    Metric(
        "coordinator",
        "coxswain_checkpoint_seconds",
        "histogram",
        "From the step boundary to the manifest.",
        (),
        _LONG,
    ),
    Metric(
        "coordinator",
        "coxswain_trainer_compute_seconds",
        "gauge",
        "Compute of a step by a trainer's slowest rank: mean over the latest 20 steps. One series a trainer.",
        ("trainer", "node"),
    ),
    Metric(
        "coordinator",
        "coxswain_trainer_wait_seconds",
        "gauge",
        "The rest of a step of that rank: data, other ranks, reduction and update. One series a trainer.",
        ("trainer", "node"),
    ),
    Metric(
        "coordinator",
        "coxswain_straggler_slowdown",
        "gauge",
        "How many times as long a confirmed straggler computes as its peers. No series of other devices.",
        ("trainer", "device", "node"),
    ),
    Metric(
        "coordinator",
        "coxswain_trainer_slowdown",
        "gauge",
        "That rank's compute over its planned compute, as a multiple of the median rank's. One series a trainer.",
        ("trainer", "node"),
    ),
    Metric("coordinator", "coxswain_worker_exits_total", "counter", "Workers that ended.", ("trainer", "exit_code")),
    Metric(
        "coordinator",
        "coxswain_worker_failures_total",
        "counter",
        "Workers that ended with another exit code than 0 and 3, which are orderly.",
    ),
    Metric("loader", "coxswain_loader_samples_total", "counter", "Samples tokenised.", ("source",)),
    Metric("loader", "coxswain_loader_tokens_served_total", "counter", "Tokens served over Flight.", ("source",)),
    Metric("loader", "coxswain_loader_open_objects", "gauge", "Objects held open."),
    Metric("loader", "coxswain_loader_cache_bytes", "gauge", "Bytes of samples whose pieces are in flight."),
    Metric("loader", "coxswain_loader_request_seconds", "histogram", "One slice request.", (), _SECONDS),
    Metric(
        "constructor", "coxswain_constructor_ready_steps", "gauge", "Steps assembled ahead of the workers.", late=True
    ),
    Metric(
        "constructor",
        "coxswain_constructor_assembly_seconds",
        "histogram",
        "Fetching and assembling a step.",
        (),
        _SECONDS,
    ),
    Metric(
        "constructor",
        "coxswain_constructor_handover_seconds",
        "histogram",
        "A worker's request to its memfd.",
        (),
        _SECONDS,
    ),
    Metric("constructor", "coxswain_constructor_bytes_total", "counter", "Bytes fetched from loaders.", ("loader",)),
    Metric("agent", "coxswain_agent_workers", "gauge", "Workers alive."),
    Metric("agent", "coxswain_agent_worker_restarts_total", "counter", "Workers started after the first time."),
    Metric(
        "operator",
        "coxswain_reconcile_total",
        "counter",
        "Reconcile passes by how they ended.",
        ("result",),
        known=(("ok",), ("conflict",), ("error",)),
    ),
    Metric("operator", "coxswain_reconcile_seconds", "histogram", "One reconcile pass.", (), _SECONDS),
    Metric("operator", "coxswain_operator_leader", "gauge", "1 while this operator holds the Lease."),
    Metric("operator", "coxswain_operator_jobs", "gauge", "TrainingJobs that the queue knows."),
    Metric("operator", "coxswain_operator_queue_seconds", "gauge", "How long the most patient job waits for its pass."),
    Metric("operator", "coxswain_operator_silence_seconds", "gauge", "Since the quietest watch was heard."),
    Metric("operator", "coxswain_operator_loop_lag_seconds", "gauge", "How late the event loop lately was at most."),
    Metric("operator", "coxswain_api_requests_total", "counter", "Answers of the API server.", ("method", "status")),
)
