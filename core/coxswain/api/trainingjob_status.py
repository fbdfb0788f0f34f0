"""TrainingJob.status: what the job does, why it waits, how far it is. Small and seldom written; the rest is in metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coxswain.api.common import ATOMIC, Conditions, Image, Model, Name, Text, Time, Whole

Number = Annotated[str, Field(max_length=32)]


class TrainerCounts(Model):
    """Trainer pods."""

    ready: Whole | None = None
    """Pods that are ready."""
    desired: Whole | None = None
    """Pods that the job wants now."""
    asked: Whole | None = None
    """spec.trainers.count when `desired` was settled. More than that while there is no room for all."""
    configured: Whole | None = None
    """What the configuration of the attempt's pods names, where the number has changed since. Empty: `desired`."""


class GangStatus(Model):
    """What became of starts that found nodes for some pods only. Absent once all pods work."""

    releases: Whole | None = None
    """Such starts in a row. Each time all nodes were released."""
    until: Time | None = None
    """When pods are created again. The wait doubles with each release, up to ten minutes, and is random."""


class Incarnation(Model):
    """Which pod of a member is the current one; stored before that pod is created. A member is the coordinator, a loader or a
    trainer."""

    name: Name
    """Name of the member, such as trainer-2; `all` stands for every member that has no entry of its own."""
    number: Whole
    """Counts the member's pods, from 0."""
    since: Time | None = None
    """When this number was stored. Empty: more than ten minutes ago."""
    delay_seconds: Whole | None = None
    """Seconds from then until the pod is created. It doubles with each pod that ends within ten minutes, up to 60."""
    failures: Whole | None = None
    """How many of these pods failed; the others were disrupted or asked to leave, or a rule
    does not count them. Empty: all."""


class Restarts(Model):
    """How many restarts there were."""

    counted: Whole | None = None
    """Restarts that count against failurePolicy.maxRestarts. One of the whole job counts once."""
    ignored: Whole | None = None
    """Restarts that do not count: after a disruption, or by a rule that ignores the limit."""


class Progress(Model):
    """How far training is."""

    step: Whole | None = None
    """Last completed step."""
    steps: Whole | None = None
    """Steps of the whole job, unless its data end before."""
    percent: Number | None = None
    """Percentage of the steps that are done, such as "41.2"."""
    tokens: Number | None = None
    """Tokens trained on."""
    loss: Number | None = None
    """Loss of the last step."""
    evaluation_loss: Number | None = None
    """Loss of the last evaluation, on held-out documents. Empty: none yet."""
    tokens_per_second: Number | None = None
    """Tokens a second over the last steps."""
    idle_percent: Number | None = None
    """Percentage of the devices' time without computation."""
    eta_seconds: Whole | None = None
    """Seconds to the end at the present rate."""
    step_seconds: Number | None = None
    """Seconds of a step, over the last steps."""


class LastCheckpoint(Model):
    """The latest complete checkpoint."""

    step: Whole
    """The first step that is not in it."""
    uri: Annotated[str, Field(max_length=2048)] | None = None
    """Address of its checkpoint manifest: longer than checkpoint.uri, which may have 1,024 characters."""
    time: Time | None = None
    """When it was complete."""


class LayoutStatus(Model):
    """How replicas, stages and devices belong together now."""

    hash: Annotated[str, Field(max_length=128)] | None = None
    """Digest that names the layout."""
    summary: Text | None = None
    """For people, such as "3 x tp1pp2 + 1 x tp1pp1"."""


class PredictedLayoutStatus(Model):
    """A layout that mode Auto has weighed."""

    layout: Text
    """For people, such as "3 x tp1pp2 + 1 x tp1pp1"."""
    predicted_step_seconds: Number
    """Seconds of a mean step, by the cost model."""


class StrategyStatus(PredictedLayoutStatus):
    """The layout that mode Auto has chosen. `progress.stepSeconds` is the measured time beside the predicted one."""

    alternatives: Annotated[list[PredictedLayoutStatus], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """The next best, the fastest first."""


class StragglerStatus(Model):
    """A device that computes slower than planned: confirmed, not suspected."""

    trainer: Name
    """Name of its trainer."""
    device: Whole
    """Its number within the trainer."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """Node of the trainer's pod. Empty: not known."""
    slowdown: Number
    """Time that it takes for its planned work, as a multiple of the planned time: "2.00" takes twice as long."""
    since: Time
    """When the first slow step ended."""
    since_step: Whole | None = None
    """That step."""
    cause: Annotated[str, Field(max_length=63)]
    """Device: it alone is slow. Node: the devices of its node are."""
    action: Text | None = None
    """What was done about it, and what was not and why. Empty: nothing."""


class KeptNodeStatus(Model):
    """A node that the job wanted to leave (stragglers.action ReplaceNode) and that stays."""

    node: Annotated[str, Field(max_length=253)]
    """Name of the node."""
    message: Text
    """Why it stays."""
    until: Time
    """When the job may ask again."""


class AttemptStatus(Model):
    """One attempt of the job, and how it ended."""

    number: Whole
    """Counts the attempts, from 0."""
    cause: Text | None = None
    """Why it ended."""
    rule: Annotated[str, Field(max_length=63)] | None = None
    """The failure rule that matched: one of the job's, or a built-in one."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Exit code of the pod that ended it."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """Node of that pod."""
    start: Time | None = None
    """When it started."""
    end: Time | None = None
    """When it ended."""
    resumed_step: Whole | None = None
    """Step of the last checkpoint that the status named when it started. A newer one that was saved while the former
    attempt ended is resumed from all the same."""


class ImagesStatus(Model):
    """The images of an attempt."""

    trainers: Image
    """Image of the trainers."""
    data: Image
    """Image of coordinator, loaders and constructors."""


class GangSchedulingStatus(Model):
    """How the pods of an attempt are placed together."""

    backend: Annotated[str, Field(max_length=63)]
    """The API for groups of pods, as the operator found it for the chart's gangScheduling. Empty: none."""
    scheduler: Annotated[str, Field(max_length=253)] | None = None
    """schedulerName of the pods, where the chart named one."""


class PinnedStatus(Model):
    """What all pods of the attempt are made of. An edit of it waits for the next attempt."""

    hash: Annotated[str, Field(max_length=16)]
    """Names the attempt's ConfigMaps: NAME-config-HASH, which pods mount, and NAME-attempt-HASH, which records what the attempt
    began with. Empty: an earlier release started the attempt, with NAME-config."""
    images: ImagesStatus
    """The images of its pods."""
    gang_scheduling: GangSchedulingStatus | None = None
    """How its pods are placed together. Absent: an earlier release started the attempt."""


class TrainingJobStatus(Model):
    """What the operator has seen and done. Only the operator writes it."""

    observed_generation: Whole | None = None
    """metadata.generation that this status describes."""
    conditions: Conditions | None = None
    """Succeeded is the summary: Unknown until the job ends, with the state as its reason. Also Validated,
    DataReady, PodsReady, Progressing, Degraded, Suspended, CheckpointFresh."""
    attempt: Whole | None = None
    """Number of the current attempt: counts restarts of the whole job, from 0."""
    world_generation: Whole | None = None
    """Counts the worlds: the groups of workers that trained together."""
    trainers: TrainerCounts | None = None
    """Trainer pods."""
    gang: GangStatus | None = None
    """Starts that were given up because not all pods found nodes."""
    ready: Annotated[str, Field(max_length=32)] | None = None
    """Ready and desired trainers, such as "3/4"."""
    replicas: Whole | None = None
    """Trainer pods that exist, for the scale subresource."""
    selector: Text | None = None
    """Label selector of the trainer pods, for the scale subresource."""
    incarnations: Annotated[list[Incarnation], Field(max_length=102_400, json_schema_extra=ATOMIC)] | None = None
    """One entry for all members (`all`), and one for each member that differs. Empty: every member's number is 0."""
    seen: Annotated[str, Field(max_length=1_048_576)] | None = None
    """Members whose current pod the operator has seen, such as "coordinator,loader:0,trainer:0-3". One of them that has no pod
    has lost it."""
    token_secret: Annotated[str, Field(max_length=253)] | None = None
    """Name of the Secret with the token that the job's pods carry. Empty: NAME-token, which releases before 0.2 made."""
    former_token_secret: Annotated[str, Field(max_length=253)] | None = None
    """Name of the Secret that the pods before mounted, while none mounts tokenSecret yet: the operator's key has changed."""
    restarts: Restarts | None = None
    """How many restarts there were."""
    progress: Progress | None = None
    """How far training is."""
    last_checkpoint: LastCheckpoint | None = None
    """The latest complete checkpoint."""
    layout: LayoutStatus | None = None
    """How replicas, stages and devices belong together now."""
    strategy: StrategyStatus | None = None
    """What parallelism.mode Auto has chosen, and what else there was. Empty: the mode is Fixed, or nothing is chosen yet."""
    stragglers: Annotated[list[StragglerStatus], Field(max_length=5, json_schema_extra=ATOMIC)] | None = None
    """Slow devices, the slowest first. Empty: none is confirmed."""
    kept_node: KeptNodeStatus | None = None
    """A node that the job wanted to leave and that stays. Empty: there is none."""
    attempts: Annotated[list[AttemptStatus], Field(max_length=10, json_schema_extra=ATOMIC)] | None = None
    """The last 10 attempts."""
    start_time: Time | None = None
    """When the first attempt's pods were created."""
    completion_time: Time | None = None
    """When the job ended."""
    active_seconds: Whole | None = None
    """Seconds that the job was active before activeSince: they count for activeDeadlineSeconds. Suspensions and time in a
    queue do not."""
    active_since: Time | None = None
    """Since when the job is active. Empty: it is queued, suspended, or has not started."""
    retried: Text | None = None
    """Value of the annotation coxswain.dev/retry that was answered last, or came with the job. Another retries an ended job."""
    pinned: PinnedStatus | None = None
    """What all pods of the attempt are made of. Empty: no attempt is under way."""
    stream_hash: Annotated[str, Field(max_length=64)] | None = None
    """Names the stream that the checkpoints belong to: an attempt of another one is refused."""
    event_sequence: Whole | None = None
    """Number of the last of the coordinator's events that is published as an Event."""
    updated_at: Time | None = None
    """When this status was written."""
