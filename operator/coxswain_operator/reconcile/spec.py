"""The part of a TrainingJob's spec that reconcile itself reads; what the services need is in the resolved JobConfig."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Literal

import msgspec

from coxswain_operator.views import Manifest

RuleAction = Literal[
    "Fail", "RestartTrainer", "RestartTrainerIgnoringLimit", "RestartJob", "RestartJobIgnoringLimit"
]  # fmt: skip


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """Fields as the API spells them; the decoder skips all others."""


class _Whole(_Read, frozen=True, forbid_unknown_fields=True):
    """Without a field that a newer release knows it would mean something else."""


class ExitCodes(_Whole, frozen=True, kw_only=True):
    operator: Literal["In", "NotIn"]
    values: tuple[int, ...]


class ConditionIs(_Whole, frozen=True, kw_only=True):
    type: str
    status: str = "True"


class Rule(_Whole, frozen=True, kw_only=True):
    """Matches a loss when everything that it names holds; of a list, one entry is enough."""

    name: str
    action: RuleAction
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[ConditionIs, ...] | None = None
    on_node_conditions: tuple[ConditionIs, ...] | None = None
    on_reasons: tuple[str, ...] | None = None


class FailurePolicy(_Read, frozen=True, kw_only=True):
    max_restarts: int = 10
    rules: tuple[Rule, ...] = ()


class TrainersSpec(_Read, frozen=True, kw_only=True):
    count: int = 1


class CheckpointSpec(_Read, frozen=True, kw_only=True):
    every_steps: int = 100


class StragglersSpec(_Read, frozen=True, kw_only=True):
    action: str = "Warn"


class JobSpec(_Read, frozen=True, kw_only=True):
    suspend: bool = False
    trainers: TrainersSpec = TrainersSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    stragglers: StragglersSpec = StragglersSpec()
    failure_policy: FailurePolicy = FailurePolicy()
    active_deadline_seconds: int | None = None
    start_timeout_seconds: int = 900
    ttl_seconds_after_finished: int | None = None


def read_spec(job: Manifest) -> JobSpec:
    """Of failure rules only those before the first that a newer release knows and this one does not: the first match decides,
    and `Validated` names that rule."""
    spec = job.get("spec") or {}
    policy = spec.get("failurePolicy") or {}
    rules = [*takewhile(_is_known, policy.get("rules") or ())]
    return msgspec.convert({**spec, "failurePolicy": {**policy, "rules": rules}}, JobSpec)


def _is_known(rule: Any) -> bool:
    try:
        msgspec.convert(rule, Rule)
    except msgspec.ValidationError:
        return False
    return True
