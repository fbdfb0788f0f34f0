"""The part of a TrainingJob's spec that reconcile itself reads; what the services need is in the resolved JobConfig."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from coxswain_operator.views import Manifest

RuleAction = Literal[
    "Fail", "RestartTrainer", "RestartTrainerIgnoringLimit", "RestartJob", "RestartJobIgnoringLimit"
]  # fmt: skip


class ExitCodes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    operator: Literal["In", "NotIn"]
    values: tuple[int, ...]


class ConditionIs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str
    status: str = "True"


class Rule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Matches a loss when everything that it names holds; of a list, one entry is enough."""

    name: str
    action: RuleAction
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[ConditionIs, ...] | None = None
    on_node_conditions: tuple[ConditionIs, ...] | None = None
    on_reasons: tuple[str, ...] | None = None


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    max_restarts: int = 10
    rules: tuple[Rule, ...] = ()


class TrainersSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    count: int = 1
    template: dict[str, Any] | None = None


class DataSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    image: str = ""


class SchedulingSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    priority_class_name: str = ""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    image: str = ""
    suspend: bool = False
    trainers: TrainersSpec = TrainersSpec()
    data: DataSpec = DataSpec()
    failure_policy: FailurePolicy = FailurePolicy()
    scheduling: SchedulingSpec = SchedulingSpec()
    active_deadline_seconds: int | None = None
    start_timeout_seconds: int = 900
    ttl_seconds_after_finished: int | None = None


def read_spec(job: Manifest) -> JobSpec:
    return msgspec.convert(job.get("spec") or {}, JobSpec)
