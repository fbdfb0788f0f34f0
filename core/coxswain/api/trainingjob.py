"""TrainingJob.spec: one training run. The user says what is trained on what; Coxswain decides where every token goes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from coxswain.api.common import (
    ATOMIC,
    FOLDER,
    LABEL_LENGTH,
    PYTHON_CLASS,
    ControllerName,
    Decimal,
    Endpoint,
    Image,
    LabelKeyOrNone,
    Model,
    Name,
    ObjectNameOrNone,
    ObjectReference,
    Positive,
    Seconds,
    Steps,
    Tokens,
    TrainerCount,
    Uri,
    Whole,
    list_map,
)
from coxswain.api.datamix import DataMixSpec
from coxswain.api.effects import Effect
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.presets import PresetName

Overlay = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class RopeScaling(Model):
    """How rotary frequencies are stretched for texts longer than those of the first training; Hugging Face's `rope_scaling`."""

    type: Literal["Linear", "Llama3"]
    """Linear: all frequencies are divided by `factor`. Llama3: only those of long waves."""
    factor: Decimal
    """By how much, at least 1."""
    low_freq_factor: Decimal = "1"
    """Llama3: waves longer than originalMaxPositionEmbeddings / lowFreqFactor are stretched by the whole factor."""
    high_freq_factor: Decimal = "4"
    """Llama3: waves shorter than originalMaxPositionEmbeddings / highFreqFactor are not stretched."""
    original_max_position_embeddings: Tokens = 8192
    """Llama3: longest text of the first training, in tokens."""


class ModelShape(Model):
    """A decoder of the Llama family (RMSNorm, RoPE, grouped-query attention, SwiGLU): Llama, Mistral, Qwen 2 and 3."""

    layers: Annotated[int, Field(ge=1, le=1024)]
    """Transformer layers."""
    hidden: Annotated[int, Field(ge=2, le=131_072)]
    """Width of the residual stream; without headSize a multiple of `heads`."""
    heads: Annotated[int, Field(ge=1, le=1024)]
    """Attention heads."""
    kv_heads: Annotated[int, Field(ge=1, le=1024)]
    """Key and value heads; divides `heads`."""
    feed_forward: Annotated[int, Field(ge=1, le=1_048_576)]
    """Width within the feed-forward block."""
    vocabulary: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    """Rows of the embedding. 0: the tokenizer's size, rounded up to 64."""
    rope_theta: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10_000
    """Base of the rotary position embedding."""
    norm_epsilon: Decimal = "1e-5"
    """Epsilon of RMSNorm."""
    head: Literal["Untied", "Tied"] = "Untied"
    """Tied: the output head shares the embedding's weights."""
    head_size: Annotated[int, Field(ge=0, le=4096)] = 0
    """Elements of one attention head, an even number. 0: hidden / heads."""
    qkv_bias: Literal["None", "Learned"] = "None"
    """Learned: queries, keys and values have a bias, as in Qwen 2 and 2.5."""
    qk_norm: Literal["None", "RMSNorm"] = "None"
    """RMSNorm: each head's query and key pass one before the rotation, as in Qwen 3."""
    rope_scaling: RopeScaling | None = None
    """How the rotary frequencies are stretched, as in Llama 3.1 and later. Empty: not at all."""


class CustomModel(Model):
    """A model of your own: a class of Python, whose module is in the trainers' image. The shape is for the plan, which reckons
    with a decoder of these sizes, and is handed to the class; see docs/models.md."""

    class_: Annotated[str, Field(alias="class", max_length=253, pattern=PYTHON_CLASS)]
    """MODULE:CLASS, such as my_package.gpt:GPT."""
    args: Overlay = Field(default_factory=dict)
    """The class's own keyword arguments."""
    layers: Annotated[int, Field(ge=1, le=1024)]
    """How many layers the model's stack has."""
    hidden: Annotated[int, Field(ge=1, le=131_072)]
    """Width of the activations between layers; a multiple of `heads`."""
    heads: Annotated[int, Field(ge=1, le=1024)]
    """Attention heads."""
    kv_heads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Key and value heads; divides `heads`. 0: as many as `heads`."""
    feed_forward: Annotated[int, Field(ge=1, le=1_048_576)]
    """Width within the feed-forward block."""
    vocabulary: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    """Rows of the embedding. 0: the tokenizer's size, rounded up to 64."""


class InitFrom(Model):
    """Weights to start from."""

    uri: Uri
    """Folder of safetensors in Hugging Face's layout, read with the checkpoint's endpoint."""


class ModelSpec(Model):
    """What is trained. Exactly one of preset, config and custom."""

    preset: PresetName | None = None
    """A published shape by name."""
    config: ModelShape | None = None
    """A shape of your own."""
    custom: CustomModel | None = None
    """A model of your own."""
    init_from: InitFrom | None = None
    """Start from these weights. Empty: random ones, from the job's seed."""


class Batch(Model):
    """Size of a step and of its sequences: it decides the stream."""

    tokens_per_step: Tokens
    """Tokens of one optimizer step. A step differs from it by less than one sequence."""
    max_sequence_tokens: Tokens
    """Longest sequence in tokens; the mix says what happens to longer documents. At most tokensPerStep."""


class ParameterGroup(Model):
    """Settings of some parameters, chosen by name."""

    match: Annotated[str, Field(min_length=1, max_length=253)]
    """Glob over the parameters' names as in Hugging Face's files, such as "model.embed_tokens.*" or "*.mlp.*". Case counts, and
    * crosses dots. It must match a parameter of the model. The first group that matches a parameter counts."""
    learning_rate_scale: Decimal = "1"
    """Multiplies the schedule's rate. "0" keeps the parameters as they are."""
    weight_decay: Decimal | None = None
    """Decoupled weight decay of these parameters, norms and biases among them. Empty: as without a group."""


class Optimizer(Model):
    """How gradients change the parameters."""

    kind: Annotated[Literal["AdamW", "Muon"], Effect.NEVER] = "AdamW"
    """Muon: the matrices within layers take orthogonalised updates as large as AdamW's, at the same rate and decay; embedding,
    head and norms stay with AdamW. It needs a tensor-parallel degree of 1."""

    learning_rate: Decimal
    """Peak learning rate, a decimal string such as "3e-4"."""
    warmup_steps: Whole = 0
    """Steps over which the rate rises from zero."""
    weight_decay: Decimal = "0.1"
    """Decoupled weight decay of matrices. Norms and biases do not decay, unless one of `groups` says so."""
    gradient_clip: Decimal = "1.0"
    """The gradient is scaled down to this norm. "0": no clipping."""
    schedule: Literal["Cosine", "Linear", "WSD", "Constant"] = "Cosine"
    """What the rate does behind the warm-up. Cosine and Linear: it falls all the way to the last step. WSD: it stays at the
    peak and falls linearly over the last decaySteps. Constant: it stays at the peak. A step behind the last one would have the
    floor."""
    minimum_ratio: Decimal = "0.1"
    """The floor of Cosine, Linear and WSD as a share of the peak, at most 1."""
    decay_steps: Steps | None = None
    """Steps over which WSD falls. Needed with WSD, empty with the others."""
    beta1: Decimal = "0.9"
    """Decay of the first moment, below 1."""
    beta2: Decimal = "0.95"
    """Decay of the second moment, below 1."""
    momentum: Decimal = "0.95"
    """Of Muon's matrices, below 1."""
    epsilon: Decimal = "1e-8"
    """Added to the denominator of the update, at least 1e-30."""
    groups: Annotated[list[ParameterGroup], Field(max_length=16, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """Settings of some parameters. Parameters that no group matches have the optimizer's own."""


class Evaluation(Model):
    """Loss on documents that are never trained on."""

    every_steps: Annotated[Steps, Effect.SUSPENDED]
    """Steps between evaluations. The last step is always evaluated."""
    tokens: Annotated[Tokens, Effect.NEVER]
    """Tokens of one evaluation, in equal parts from the sources of the mix. The documents that they are from are the same each
    time, and in no pass trained on: at most half of each source's. At most 32 times batch.tokensPerStep."""


class Stop(Model):
    """When training is done. Exactly one of steps and tokens. It can only be raised: the attempt ends at its own stop,
    and the next one goes on."""

    steps: Steps | None = None
    """Training ends after so many steps."""
    tokens: Positive | None = None
    """Training ends after as many steps of batch.tokensPerStep as reach so many tokens: tokens / tokensPerStep, rounded up."""


class Trainers(Model):
    """The trainer pods."""

    count: Annotated[TrainerCount, Effect.AT_ONCE]
    """How many trainers, between minCount and maxCount once the job runs, also by `kubectl scale`: pods join or leave, and the
    others train on. Where the coordinator refuses that, or Kueue has the job, it saves a checkpoint and restarts from it.
    The stream stays the same."""
    devices_per_trainer: Annotated[int, Field(ge=1, le=64), Effect.SUSPENDED] = 1
    """Accelerators (or CPU workers) of one trainer."""
    min_count: Annotated[TrainerCount | None, Effect.SUSPENDED] = None
    """Fewest trainers that training starts with, once startTimeoutSeconds have passed and no node has room for the others, or
    as many from here to `count` as a queue of Kueue's has room for. Empty: `count`."""
    max_count: Annotated[TrainerCount | None, Effect.SUSPENDED] = None
    """Most trainers that the job may be scaled to. Empty: `count` stays as it is."""
    template: Annotated[Overlay | None, Effect.SUSPENDED] = None
    """PodTemplateSpec, laid over the trainers' pods as by `kubectl patch`: metadata.labels, metadata.annotations, and spec with
    nodeSelector, tolerations, volumes and so on. Its container `trainer` is laid over ours; the resources there replace ours,
    which are one `nvidia.com/gpu` a device unless the policy's hardware is cpu. The operator alone sets restartPolicy, host names
    and automountServiceAccountToken. A bare pod spec, the shape of earlier releases, is accepted in this one."""


class Loaders(Model):
    """How many loaders a job has."""

    min: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of loaders: the pool does not grow yet."""
    max: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Most loaders that the pool is to grow to. Empty: `min`. This release refuses more than that."""


class Data(Model):
    """The data services."""

    image: Image = ""
    """Image of coordinator, loaders and constructors. Empty: the operator's setting."""
    loaders: Loaders = Loaders()
    """How many loaders there are."""
    prefetch_steps: Annotated[int, Field(ge=1, le=64)] = 2
    """How many steps constructors assemble ahead of the workers."""
    template: Overlay | None = None
    """PodTemplateSpec, laid over the pods of coordinator and loaders as trainers.template is over theirs. Its containers
    `coordinator` and `loader` are laid over ours of that name. (Constructors are in the trainers' pods: initContainers of that
    template.)"""


class Checkpoint(Model):
    """Where and how often state is saved."""

    uri: Annotated[Uri, Effect.NEVER]
    """Folder of the checkpoints and of the plan log."""
    endpoint: Annotated[Endpoint | None, Effect.SUSPENDED] = None
    """The S3 server of `uri`. Empty: the provider's own."""
    every_steps: Annotated[Steps, Effect.SUSPENDED] = 100
    """Steps between checkpoints."""
    keep_last: Annotated[int, Field(ge=1, le=1000), Effect.SUSPENDED] = 3
    """How many of the latest checkpoints are kept."""
    keep_every: Annotated[int, Field(ge=0, le=1_000_000_000), Effect.SUSPENDED] = 0
    """Checkpoints at multiples of this step are kept for ever; 0: none."""
    resume: Annotated[Literal["Auto", "Never"], Effect.SUSPENDED] = "Auto"
    """Auto: resume from the latest checkpoint, if there is one. Never: refuse a folder that holds another run."""


class TensorBoard(Model):
    """TensorBoard's event files, written by the coordinator."""

    directory: Annotated[str, Field(max_length=1024, pattern=FOLDER)] = ""
    """Folder in the coordinator's container, such as that of a volume of data.template. Empty: `tensorboard` in the run's
    directory, which `cox run` keeps."""


class Wandb(Model):
    """A run of Weights & Biases, written by the coordinator. Its key is WANDB_API_KEY, from data.template's environment or, for
    `cox run`, from this process's."""

    project: Annotated[str, Field(min_length=1, max_length=128)]
    """Project of the run."""
    entity: Annotated[str, Field(max_length=128)] = ""
    """User or team of the project. Empty: the key's own."""
    mode: Literal["Online", "Offline"] = "Online"
    """Offline: files in the run's directory, for `wandb sync`."""


class Tracking(Model):
    """Experiment trackers that each step is written to. The coordinator's image needs their packages, `coxswain[tracking]`. A
    tracker that fails never stops the training."""

    tensorboard: TensorBoard | None = None
    """TensorBoard. Empty: no event files."""
    wandb: Wandb | None = None
    """Weights & Biases. Empty: no run there."""


class Stragglers(Model):
    """What is to happen to devices that compute slower than their peers."""

    action: Literal["None", "Warn", "Rebalance", "Migrate", "ReplaceNode"] = "Warn"
    """The strongest measure that may be taken; each includes those before it. None: devices are not watched. Warn: a
    slow device is named in the status, by an event and by a metric. Rebalance: its replica also gets less work; plans
    are then committed only two steps ahead, so that training waits for a coordinator that restarts. Migrate: layers and
    devices are also dealt otherwise, without a restart, once that has cost more than the change does. ReplaceNode: the
    operator is also asked for another node, where nothing else makes up for a slow one."""
    threshold_percent: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many percent slower than its peers a device must be to be a straggler. It is none any more once it is less
    than half of that slower."""
    window_steps: Annotated[int, Field(ge=1, le=100)] = 3
    """The median of so many successive steps counts as one look at a device. Four of the last six looks make a suspect."""


class Recovery(Model):
    """How training goes on after a loss."""

    copies: Literal["None", "EveryStep"] = "None"
    """EveryStep: each device keeps a copy of the optimizer state of a device of another trainer, on another node where there
    is one, and updates it in every step. So a lost device costs no return to a checkpoint. It takes 12 bytes a parameter of
    the model, shared by all devices as the state is, and in every step each gradient is sent once more. A
    single trainer keeps none."""


class OnExitCodes(Model):
    """Matches the exit code of the pod's main container."""

    operator: Literal["In", "NotIn"]
    """In: the code is one of `values`. NotIn: it is none of them."""
    values: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1, max_length=255)]
    """Exit codes. 0 is no failure and never matches."""


class OnCondition(Model):
    """Matches a condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Type of the condition, such as DisruptionTarget of a pod or Ready of a node."""
    status: Literal["True", "False", "Unknown"] = "True"
    """Its status."""


OnConditions = Annotated[list[OnCondition], Field(min_length=1, max_length=20, json_schema_extra=ATOMIC)]
Reason = Annotated[str, Field(min_length=1, max_length=128)]


class FailureRule(Model):
    """What a failed pod leads to. At least one of the fields that begin with `on`; all that are given must match."""

    name: Name
    """Name of the rule, for status and events."""
    on_exit_codes: OnExitCodes | None = None
    """Matches by exit code."""
    on_pod_conditions: OnConditions | None = None
    """Matches when the pod has one of these conditions."""
    on_node_conditions: OnConditions | None = None
    """Matches when the pod's node has one of these conditions at the pod's end. A pod that runs is left alone, whatever its
    node's conditions are."""
    on_reasons: Annotated[list[Reason], Field(min_length=1, max_length=20)] | None = None
    """Matches when the container or pod ended, or cannot start, for one of these reasons, such as OOMKilled, ImagePullBackOff
    or Unschedulable."""
    action: Literal["Fail", "RestartTrainer", "RestartTrainerIgnoringLimit", "RestartJob", "RestartJobIgnoringLimit"]
    """Fail: the job ends. RestartTrainer: the pod is replaced, whichever role it has. RestartJob: all pods are replaced, and
    training resumes from the checkpoint. IgnoringLimit: it does not count against maxRestarts."""


class FailurePolicy(Model):
    """What failures lead to."""

    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Counted restarts before the job fails. What the cluster does to a pod (drain, preemption, lost node) is never counted."""
    rules: Annotated[list[FailureRule], list_map("name")] = Field(default_factory=list)
    """The first rule that matches decides. Without a match: a disruption (such as a drained node) replaces the pod and is not
    counted, exit code 2 fails the job, everything else replaces the pod and is counted. A pod that soon fails again after
    three counted replacements restarts the job."""


class Queueing(Model):
    """Admission by a queue."""

    backend: Literal["None", "Kueue"] = "None"
    """None: pods start as soon as there is room. Kueue: all pods of a start are one pod group, which Kueue admits together."""
    queue_name: Annotated[ObjectNameOrNone, Field(max_length=LABEL_LENGTH)] = ""
    """Name of the queue, which the pods have in a label. Needed with a backend, empty without."""
    priority_class_name: ObjectNameOrNone = ""
    """Kueue's WorkloadPriorityClass, which decides about the order in the queue and about preemption. Only with Kueue. Empty:
    the PriorityClass of the pods decides."""


class Topology(Model):
    """How near to each other the trainers run. At most one of required and preferred."""

    required: LabelKeyOrNone = ""
    """Node label whose value must be the same for all trainers of an attempt. Empty: any nodes."""
    preferred: LabelKeyOrNone = ""
    """Node label whose value is the same for the trainers as far as possible. Empty: no preference."""


class Scheduling(Model):
    """How pods find their nodes."""

    queueing: Queueing = Queueing()
    """Admission by a queue."""
    priority_class_name: ObjectNameOrNone = ""
    """PriorityClass of all pods. Empty: the cluster's default."""
    topology: Topology = Topology()
    """How near to each other the trainers run."""


class TrainingJobSpec(Model):
    """One training run, from the sources of a mix to the weights in a checkpoint."""

    image: Annotated[Image, Effect.SUSPENDED] = ""
    """Image of the trainers. Empty: the operator's setting."""
    seed: Annotated[Whole, Effect.NEVER] = 0
    """Seed of the initial parameters. The order of the documents has its own: the mix's seed."""
    model: Annotated[ModelSpec, Effect.NEVER]
    """What is trained."""
    mix_ref: Annotated[ObjectReference | None, Effect.NEVER] = None
    """The DataMix. Exactly one of mixRef and mix."""
    mix: DataMixSpec | None = None
    """A mix of this job only."""
    parallelism_ref: Annotated[ObjectReference | None, Effect.SUSPENDED] = None
    """The ParallelismPolicy. Exactly one of parallelismRef and parallelism."""
    parallelism: Annotated[ParallelismPolicySpec | None, Effect.SUSPENDED] = None
    """A policy of this job only."""
    batch: Annotated[Batch, Effect.NEVER]
    """Size of a step and of its sequences."""
    optimizer: Annotated[Optimizer, Effect.SUSPENDED]
    """How gradients change the parameters, and the schedule of the learning rate."""
    evaluation: Annotated[Evaluation | None, Effect.NEVER] = None
    """Loss on held-out documents. Empty: all documents are trained on. It decides the stream, so it cannot be added later."""
    stop: Annotated[Stop, Effect.NEXT_ATTEMPT]
    """When training is done. It can only be raised."""
    trainers: Trainers
    """The trainer pods."""
    data: Annotated[Data, Effect.SUSPENDED] = Data()
    """The data services."""
    checkpoint: Checkpoint
    """Where and how often state is saved."""
    tracking: Annotated[Tracking | None, Effect.NEXT_ATTEMPT] = None
    """Experiment trackers. Empty: none; steps are in steps.jsonl and in the metrics anyhow."""
    stragglers: Annotated[Stragglers, Effect.NEXT_ATTEMPT] = Stragglers()
    """What is to happen to slow devices."""
    recovery: Annotated[Recovery, Effect.NEXT_ATTEMPT] = Recovery()
    """What is kept to go on after a loss."""
    failure_policy: Annotated[FailurePolicy, Effect.AT_ONCE] = FailurePolicy()
    """What failures lead to."""
    scheduling: Annotated[Scheduling, Effect.SUSPENDED] = Scheduling()
    """How pods find their nodes."""
    managed_by: Annotated[ControllerName | None, Effect.NEVER] = None
    """The controller that acts on the job. Empty: coxswain.dev/operator, the name of an installation that has no other. All
    others leave the job alone."""
    suspend: Annotated[bool, Effect.AT_ONCE] = False
    """True: save a checkpoint, then run no pods."""
    active_deadline_seconds: Annotated[Seconds | None, Effect.AT_ONCE] = None
    """Seconds from the first start, without those of suspensions and in a queue, after which the job fails. Empty: no
    deadline."""
    first_step_timeout_seconds: Annotated[int, Field(ge=60, le=86_400), Effect.NEXT_ATTEMPT] = 1800
    """Seconds that workers may take to load their state and run a world's first step, from the last progress of any of them.
    Beyond, they count as hanging and start again from the last checkpoint. A trainer whose workers' imports take as long in a
    world is replaced."""
    start_timeout_seconds: Annotated[Seconds, Effect.AT_ONCE] = 900
    """Seconds from when a pod has a node until its containers run; after that it is replaced, and the restart counts. A pod
    without a node waits and counts nothing (but see trainers.minCount). Indexing is not part of it."""
    ttl_seconds_after_finished: Annotated[Annotated[int, Field(ge=0, le=315_360_000)] | None, Effect.AT_ONCE] = None
    """Seconds after its end at which the job is deleted. Empty: never. `cox run` keeps it, with the work directory."""
