"""TrainingJob.status: what the job does, why it waits, how far it is. Small and seldom written; details are metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coxswain.api.common import ATOMIC, Conditions, Model, Name, Text, Time, Whole

Number = Annotated[str, Field(max_length=32)]


class TrainerCounts(Model):
    """Trainer pods."""

    ready: Whole | None = None
    """Pods that are ready."""
    desired: Whole | None = None
    """Pods that the job wants now."""
    asked: Whole | None = None
    """spec.trainers.count when the gang started. More than `desired` while there is no room for all."""


class Incarnation(Model):
    """Which pod of a member (coordinator, loader or trainer) is the current one; stored before that pod is created."""

    name: Name
    """Stable name, such as trainer-2; `all` stands for every member that has no entry of its own."""
    number: Whole
    """Counts its pods, from 0."""
    since: Time | None = None
    """When this number was stored. Empty: long ago."""
    delay_seconds: Whole | None = None
    """How long after that the pod is created: grows with pods that do not live long."""


class Restarts(Model):
    """Pods replaced."""

    counted: Whole | None = None
    """Those that count against failurePolicy.maxRestarts."""
    ignored: Whole | None = None
    """Those that a rule excused."""


class Progress(Model):
    """How far training is."""

    step: Whole | None = None
    """Last completed step."""
    steps: Whole | None = None
    """Steps to do, or as far as stop.tokens lets one say."""
    percent: Number | None = None
    """Share of the work done, such as "41.2"."""
    tokens: Number | None = None
    """Tokens trained on."""
    loss: Number | None = None
    """Loss of the last step."""
    tokens_per_second: Number | None = None
    """Throughput over the last steps."""
    idle_percent: Number | None = None
    """Share of device time without compute."""
    eta_seconds: Whole | None = None
    """Seconds to the end at this rate."""


class LastCheckpoint(Model):
    """The latest complete checkpoint."""

    step: Whole
    """State before this step."""
    uri: Text | None = None
    """Its manifest."""
    time: Time | None = None
    """When it was complete."""


class LayoutStatus(Model):
    """The current layout."""

    hash: Annotated[str, Field(max_length=128)] | None = None
    """Names the layout."""
    summary: Text | None = None
    """For people, such as "3 x tp1pp2 + 1 x tp1pp1"."""


class StragglerStatus(Model):
    """A device that is slow now."""

    trainer: Whole
    """Index of the trainer."""
    device: Whole
    """Index of the device within it."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """The Kubernetes node."""
    slowdown: Number | None = None
    """How many times slower than its peers."""
    since: Time | None = None
    """Since when."""


class AttemptStatus(Model):
    """One attempt of the job, and how it ended."""

    number: Whole
    """Counts attempts, from 0."""
    cause: Text | None = None
    """Why it ended."""
    rule: Annotated[str, Field(max_length=63)] | None = None
    """The rule of the failure policy that matched."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Exit code of the pod that ended it."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """Its node."""
    start: Time | None = None
    """When it started."""
    end: Time | None = None
    """When it ended."""
    resumed_step: Whole | None = None
    """Step it started from."""


class TrainingJobStatus(Model):
    """What the operator has seen and done. Only the operator writes it."""

    observed_generation: Whole | None = None
    """metadata.generation that this status describes."""
    conditions: Conditions | None = None
    """Succeeded is the summary: Unknown until the job ends, with the state as its reason. Also Validated,
    DataReady, PodsReady, Progressing, Degraded, Suspended, CheckpointFresh."""
    attempt: Whole | None = None
    """Counts restarts of the whole job."""
    world_generation: Whole | None = None
    """Counts changes of world or layout."""
    trainers: TrainerCounts | None = None
    """Trainer pods."""
    ready: Annotated[str, Field(max_length=32)] | None = None
    """Ready and desired trainers for people: "3/4"."""
    replicas: Whole | None = None
    """Trainer pods that exist, for the scale subresource."""
    selector: Text | None = None
    """Label selector of the trainer pods, for the scale subresource."""
    incarnations: Annotated[list[Incarnation], Field(max_length=102_400, json_schema_extra=ATOMIC)] | None = None
    """Of everybody (`all`) and of members that differ. Empty: every member's number is 0."""
    seen: Annotated[str, Field(max_length=1_048_576)] | None = None
    """Members whose current pod has been seen, such as "coordinator,loader:0,trainer:0-3": one of them without a pod has
    lost it."""
    restarts: Restarts | None = None
    """Pods replaced."""
    progress: Progress | None = None
    """How far training is."""
    last_checkpoint: LastCheckpoint | None = None
    """The latest complete checkpoint."""
    layout: LayoutStatus | None = None
    """The current layout."""
    stragglers: Annotated[list[StragglerStatus], Field(max_length=5, json_schema_extra=ATOMIC)] | None = None
    """The slowest devices, at most 5."""
    attempts: Annotated[list[AttemptStatus], Field(max_length=10, json_schema_extra=ATOMIC)] | None = None
    """The last 10 attempts."""
    start_time: Time | None = None
    """When the first attempt's pods were created."""
    completion_time: Time | None = None
    """When the job ended."""
    active_seconds: Whole | None = None
    """Seconds that the job was active before its last suspension."""
    retried: Text | None = None
    """Value of the annotation coxswain.dev/retry that the latest retry answered. Another value retries the ended job."""
    event_sequence: Whole | None = None
    """The last of the coordinator's events that has been published."""
    updated_at: Time | None = None
    """When this status was written."""
