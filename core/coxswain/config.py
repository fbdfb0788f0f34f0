"""The resolved job: one frozen value that every service reads from its ConfigMap file `job.json`.

`coxswain.api.resolve` makes it from the custom resources (defaults applied, references followed, decimal strings parsed);
services never see the resources themselves.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from coxswain.structs import prepare


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An S3 server; an empty url means the provider's own.

    `secret` names a mounted Secret with AWS_* keys; empty: boto3's chain. `addressing_style`: `Virtual` puts the bucket before
    the host.
    """

    url: str = ""
    region: str = ""
    secret: str = ""
    addressing_style: Literal["Path", "Virtual"] = "Path"


COMMON_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")  # usual names of an end-of-text token

WITHOUT_TEXT_FIELD = ("Text", "TokenBin")  # formats that ignore textField


class TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes`: ids 0-255 and EOS 256. `file`: a Hugging Face tokenizer.json at `uri`.

    `eos` is the file's end-of-text token.
    """

    kind: Literal["bytes", "file"]
    uri: str = ""
    eos: str = ""


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One source as the mix uses it."""

    name: str  # in the mix; keys and digests use this one
    source: str  # the DataSource's name
    uri: str
    format: Literal["Parquet", "Jsonl", "Text", "Tar", "TokenBin"]
    include: str  # glob relative to uri
    text_field: str
    tokenizer: TokenizerConfig
    endpoint: EndpointConfig = EndpointConfig()
    weight: int
    max_passes: int = 0  # 0 = no limit
    max_rejected: int = 0  # samples that may fail to decode before the source is refused


class PhaseConfig(msgspec.Struct, frozen=True, kw_only=True):
    """From this step (or token count) on, these weights (by source name in the mix; absent = 0)."""

    from_step: int = -1  # -1: from_tokens counts
    from_tokens: int = -1
    weights: dict[str, int]


class MixConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sources sorted by name."""

    name: str
    seed: int
    sources: tuple[SourceConfig, ...]
    phases: tuple[PhaseConfig, ...] = ()
    long_sequences: Literal["Split", "Truncate", "Drop"] = "Split"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched. Linear: all by `factor`. Llama3: long waves by `factor`, short ones not, the rest
    in between; a wave is long beyond `original_context` / `low_frequency_factor` tokens."""

    kind: Literal["Linear", "Llama3"]
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192


class CustomModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the user's own: `path` is MODULE:CLASS, `arguments` the class's own keyword arguments."""

    path: str
    arguments: dict[str, Any] = {}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of the Llama family, or with `custom` the shape of another. `vocabulary` 0: the tokenizer's size, rounded up
    to 64."""

    preset: str = ""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int = 0
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    tied_head: bool = False
    init_from: str = ""  # uri of safetensors in Hugging Face's layout
    head_size: int = 0  # 0: hidden / heads
    qkv_bias: bool = False  # Qwen 2
    qk_norm: bool = False  # Qwen 3: RMSNorm of each head's query and key, before the rotation
    rope_scaling: RopeScaling | None = None
    custom: CustomModel | None = None

    @property
    def size_of_head(self) -> int:
        return self.head_size or self.hidden // self.heads


_NEWER_FIELDS = ("head_size", "qkv_bias", "qk_norm", "rope_scaling", "custom")
"""Fields of a model that a checkpoint of an earlier release did not hash. They are hashed where they are not at their default."""


class StageShape(msgspec.Struct, frozen=True):
    """Consecutive layers on one tensor group."""

    layers: int
    tensor: int = 1


class ReplicaShape(msgspec.Struct, frozen=True):
    """`count` replicas with these stages. `tokens`: of a task, where mode Auto gives them fewer than `tokens_per_replica`."""

    stages: tuple[StageShape, ...]
    count: int = 1
    tokens: int | msgspec.UnsetType = msgspec.UNSET


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["Fixed", "Auto"] = "Fixed"
    tensor: int = 1
    pipeline: int = 1
    tokens_per_replica: int = 8192
    max_degree: int = 64
    balance: str = "Makespan"
    attention: Literal["Ring", "Ulysses", "Auto"] = "Ring"
    offload: Literal["Auto", "Off"] = "Off"
    hardware: str = "cpu"  # constants file of the cost model
    recompute: Literal["None", "Selective", "Full"] = "None"
    layout: tuple[ReplicaShape, ...] = ()  # empty: equal replicas of `tensor` x `pipeline` devices
    profile: str = ""  # uri of a measured constants file, instead of `hardware`'s; empty: there is none

    @property
    def least_devices(self) -> int:
        """Devices that training needs: those of a whole layout, or of one replica."""
        shaped = sum(shape.count * sum(stage.tensor for stage in shape.stages) for shape in self.layout)
        return shaped or self.tensor * self.pipeline


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    tokens_per_step: int
    max_sequence_tokens: int


class ParameterGroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the parameters whose name matches the glob `match`."""

    match: str
    learning_rate_scale: float = 1.0
    weight_decay: float | None = None  # None: the optimizer's, for matrices


OptimizerKind = Literal["AdamW", "Muon"]


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    learning_rate: float
    warmup_steps: int = 0
    weight_decay: float = 0.0
    gradient_clip: float = 0.0  # 0 = off
    schedule: Literal["Cosine", "Linear", "WSD", "Constant"] = "Cosine"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    minimum_ratio: float = 0.1  # of the peak rate, where the schedule ends
    decay_steps: int = 0  # of WSD
    groups: tuple[ParameterGroupConfig, ...] = ()  # the first that matches counts
    kind: OptimizerKind = "AdamW"
    momentum: float = 0.95  # of Muon


class EvaluationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` of held-out documents are evaluated after every `every_steps` steps; 0: none are held out."""

    every_steps: int = 0
    tokens: int = 0


class CheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    endpoint: EndpointConfig = EndpointConfig()
    every_steps: int = 100
    keep_last: int = 3
    keep_every: int = 0
    resume: Literal["Auto", "Never"] = "Auto"


class StragglerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """None: devices are not watched at all."""

    action: Literal["None", "Warn", "Rebalance", "Migrate", "ReplaceNode"] = "None"
    threshold_percent: int = 10
    window_steps: int = 3

    @property
    def changes_layouts(self) -> bool:
        """Whether slow devices go on standby, and come back."""
        return self.action in ("Migrate", "ReplaceNode")


class RecoveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`copies`: each rank keeps one of another rank's shard of the state."""

    copies: bool = False


class TensorBoardConfig(msgspec.Struct, frozen=True, kw_only=True):
    directory: str = ""  # empty: `tensorboard` in the run directory


class WandbConfig(msgspec.Struct, frozen=True, kw_only=True):
    project: str
    entity: str = ""  # empty: the key's own
    mode: Literal["Online", "Offline"] = "Online"


class TrackingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Trackers that the coordinator writes steps to; None: not to that one."""

    tensorboard: TensorBoardConfig | None = None
    wandb: WandbConfig | None = None


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a service of the job knows when it starts."""

    name: str
    namespace: str
    uid: str
    seed: int
    model: ModelConfig
    mix: MixConfig
    parallelism: ParallelConfig
    batch: BatchConfig
    optimizer: OptimizerConfig
    stop_steps: int = 0  # exactly one of the two is > 0
    stop_tokens: int = 0
    trainers: int
    devices_per_trainer: int
    min_trainers: int
    loaders: int  # that the job starts with
    prefetch_steps: int = 2
    checkpoint: CheckpointConfig
    stragglers: StragglerConfig = StragglerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    first_step_timeout_seconds: int = 1800  # for a world's start without progress, until its first step ends
    tracking: TrackingConfig = TrackingConfig()
    recovery: RecoveryConfig | msgspec.UnsetType = msgspec.UNSET  # absent: the defaults

    @property
    def copies(self) -> bool:
        """Whether each rank keeps a copy of another rank's shard."""
        return self.recovery is not msgspec.UNSET and self.recovery.copies

    @property
    def total_steps(self) -> int:
        """The length of the schedule: stop.steps, or ceil(stop.tokens / tokensPerStep)."""
        return self.stop_steps or -(-self.stop_tokens // self.batch.tokens_per_step)

    def stream_hash(self) -> str:
        """Hashes all that membership depends on, except index contents and phases.

        A checkpoint with another hash belongs to another stream.
        """
        return stream_hash(self.mix, self.batch, self.evaluation.tokens)

    def model_hash(self) -> str:
        """Hashes the model's shape. A checkpoint with another hash belongs to another model."""
        what = msgspec.to_builtins(msgspec.structs.replace(self.model, preset="", init_from=""))
        hashed = {name: value for name, value in what.items() if value or name not in _NEWER_FIELDS}
        return hashlib.sha256(msgspec.json.encode(hashed)).hexdigest()


def stream_hash(mix: MixConfig, batch: BatchConfig, held_out: int = 0) -> str:
    """Hashes what defines a stream besides the contents of its sources. `held_out`: tokens of an evaluation.

    Locations, and what may change under a running job, are left out: moved data with the same
    contents is the same stream.
    """
    sources = [(s.name, s.format, s.text_field, s.tokenizer.kind, s.tokenizer.eos) for s in mix.sources]
    what = (sources, mix.seed, mix.long_sequences, batch, *((held_out,) if held_out else ()))
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def load_job(path: Path) -> JobConfig:
    return msgspec.json.decode(path.read_bytes(), type=JobConfig)


prepare(__name__)
