"""Turns specs into the frozen values of services: parses decimals, fills presets, mounts claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from coxswain import config
from coxswain.api.common import Endpoint
from coxswain.api.datamix import DataMixSpec, MixSource
from coxswain.api.datasource import DataSourceSpec, Tokenizer
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.trainingjob import (
    Checkpoint,
    CustomModel,
    Evaluation,
    ModelSpec,
    Optimizer,
    ParameterGroup,
    RopeScaling,
    Tracking,
    TrainingJobSpec,
)
from coxswain.names import CLAIMS_ROOT
from coxswain.presets import PRESETS
from coxswain.uris import file_uri

Used = tuple[MixSource, DataSourceSpec]


def mounted(uri: str) -> str:
    """A uri as the services see it: claims are folders."""
    return f"{file_uri(CLAIMS_ROOT)}/{uri.removeprefix('pvc://')}" if uri.startswith("pvc://") else uri


def job_config(
    metadata: Mapping[str, Any], spec: TrainingJobSpec, mix: config.MixConfig, policy: ParallelismPolicySpec, uid: str
) -> config.JobConfig:
    trainers = spec.trainers
    return config.JobConfig(
        name=metadata["name"],
        namespace=metadata.get("namespace") or "default",
        uid=uid,
        seed=spec.seed,
        model=model_config(spec.model),
        mix=mix,
        parallelism=parallel_config(policy),
        batch=config.BatchConfig(
            tokens_per_step=spec.batch.tokens_per_step, max_sequence_tokens=spec.batch.max_sequence_tokens
        ),
        optimizer=optimizer_config(spec.optimizer),
        stop_steps=spec.stop.steps or 0,
        stop_tokens=spec.stop.tokens or 0,
        trainers=trainers.count,
        devices_per_trainer=trainers.devices_per_trainer,
        min_trainers=trainers.min_count or trainers.count,
        loaders=spec.data.loaders.min,
        prefetch_steps=spec.data.prefetch_steps,
        first_step_timeout_seconds=spec.first_step_timeout_seconds,
        checkpoint=_checkpoint(spec.checkpoint),
        evaluation=_evaluation(spec.evaluation),
        tracking=_tracking(spec.tracking),
        stragglers=config.StragglerConfig(
            action=spec.stragglers.action,
            threshold_percent=spec.stragglers.threshold_percent,
            window_steps=spec.stragglers.window_steps,
        ),
        recovery=config.RecoveryConfig(copies=True) if spec.recovery.copies == "EveryStep" else UNSET,
    )


def mix_config(spec: TrainingJobSpec, mix: DataMixSpec, used: list[Used]) -> config.MixConfig:
    phases = (
        config.PhaseConfig(
            from_step=-1 if phase.from_step is None else phase.from_step,
            from_tokens=-1 if phase.from_tokens is None else phase.from_tokens,
            weights={entry.name: entry.weight for entry in phase.weights},
        )
        for phase in mix.phases
    )
    return config.MixConfig(
        name=spec.mix_ref.name if spec.mix_ref else "",
        seed=mix.seed,
        sources=tuple(sorted((_source(*pair) for pair in used), key=lambda source: source.name)),
        phases=tuple(sorted(phases, key=lambda phase: (phase.from_step, phase.from_tokens))),
        long_sequences=mix.long_sequences,
    )


def _source(entry: MixSource, source: DataSourceSpec) -> config.SourceConfig:
    return config.SourceConfig(
        name=entry.name,
        source=entry.source_ref.name,
        uri=mounted(source.uri),
        format=source.format,
        include=source.include,
        text_field=source.text_field,
        tokenizer=_tokenizer(source.tokenizer),
        endpoint=_endpoint(source.endpoint),
        weight=entry.weight,
        max_passes=entry.max_passes,
        max_rejected=source.max_rejected,
    )


def _tokenizer(tokenizer: Tokenizer) -> config.TokenizerConfig:
    if tokenizer.file is None:
        return config.TokenizerConfig(kind="bytes")
    return config.TokenizerConfig(kind="file", uri=mounted(tokenizer.file.uri), eos=tokenizer.file.eos)


def _endpoint(endpoint: Endpoint | None) -> config.EndpointConfig:
    if endpoint is None:
        return config.EndpointConfig()
    secret = endpoint.secret_ref.name if endpoint.secret_ref else ""
    return config.EndpointConfig(
        url=endpoint.url, region=endpoint.region, secret=secret, addressing_style=endpoint.addressing_style
    )


def model_config(model: ModelSpec) -> config.ModelConfig:
    start = mounted(model.init_from.uri) if model.init_from else ""
    if model.custom is not None:
        return _custom(model.custom, start)
    if model.config is None:
        assert model.preset is not None, "rule: exactly one of preset and config"
        shape = PRESETS[model.preset]
        fields = {name: getattr(shape, name) for name in shape.__struct_fields__}
        return config.ModelConfig(**{**fields, "preset": model.preset, "init_from": start})
    own = model.config
    return config.ModelConfig(
        layers=own.layers,
        hidden=own.hidden,
        heads=own.heads,
        kv_heads=own.kv_heads,
        feed_forward=own.feed_forward,
        vocabulary=own.vocabulary,
        rope_theta=float(own.rope_theta),
        norm_epsilon=float(own.norm_epsilon),
        tied_head=own.head == "Tied",
        init_from=start,
        head_size=own.head_size,
        qkv_bias=own.qkv_bias == "Learned",
        qk_norm=own.qk_norm == "RMSNorm",
        rope_scaling=_rope_scaling(own.rope_scaling),
    )


def _rope_scaling(given: RopeScaling | None) -> config.RopeScaling | None:
    if given is None:
        return None
    if given.type == "Linear":
        return config.RopeScaling(kind="Linear", factor=float(given.factor))
    return config.RopeScaling(
        kind="Llama3",
        factor=float(given.factor),
        low_frequency_factor=float(given.low_freq_factor),
        high_frequency_factor=float(given.high_freq_factor),
        original_context=given.original_max_position_embeddings,
    )


def _custom(own: CustomModel, start: str) -> config.ModelConfig:
    return config.ModelConfig(
        layers=own.layers,
        hidden=own.hidden,
        heads=own.heads,
        kv_heads=own.kv_heads or own.heads,
        feed_forward=own.feed_forward,
        vocabulary=own.vocabulary,
        init_from=start,
        custom=config.CustomModel(path=own.class_, arguments=own.args),
    )


def parallel_config(policy: ParallelismPolicySpec) -> config.ParallelConfig:
    hybrid = policy.hybrid_data
    shapes = policy.layout.replicas if policy.layout else ()
    return config.ParallelConfig(
        mode=policy.mode,
        tensor=policy.tensor,
        pipeline=policy.pipeline,
        tokens_per_replica=hybrid.tokens_per_replica,
        max_degree=hybrid.max_degree,
        balance=hybrid.balance,
        attention=hybrid.attention,
        offload=policy.offload,
        recompute=policy.recompute,
        hardware=policy.hardware,
        profile=mounted(policy.profile.uri) if policy.profile else "",
        layout=tuple(
            config.ReplicaShape(tuple(config.StageShape(s.layers, s.tensor) for s in shape.stages), shape.count)
            for shape in shapes
        ),
    )


def optimizer_config(optimizer: Optimizer) -> config.OptimizerConfig:
    return config.OptimizerConfig(
        learning_rate=float(optimizer.learning_rate),
        warmup_steps=optimizer.warmup_steps,
        weight_decay=float(optimizer.weight_decay),
        gradient_clip=float(optimizer.gradient_clip),
        schedule=optimizer.schedule,
        beta1=float(optimizer.beta1),
        beta2=float(optimizer.beta2),
        epsilon=float(optimizer.epsilon),
        minimum_ratio=float(optimizer.minimum_ratio),
        decay_steps=optimizer.decay_steps or 0,
        kind=optimizer.kind,
        momentum=float(optimizer.momentum),
        groups=tuple(_group(group) for group in optimizer.groups),
    )


def _evaluation(evaluation: Evaluation | None) -> config.EvaluationConfig:
    if evaluation is None:
        return config.EvaluationConfig()
    return config.EvaluationConfig(every_steps=evaluation.every_steps, tokens=evaluation.tokens)


def _tracking(tracking: Tracking | None) -> config.TrackingConfig:
    board, wandb = (tracking.tensorboard, tracking.wandb) if tracking else (None, None)
    return config.TrackingConfig(
        tensorboard=config.TensorBoardConfig(directory=board.directory) if board else None,
        wandb=config.WandbConfig(project=wandb.project, entity=wandb.entity, mode=wandb.mode) if wandb else None,
    )


def _group(group: ParameterGroup) -> config.ParameterGroupConfig:
    decay = None if group.weight_decay is None else float(group.weight_decay)
    scale = float(group.learning_rate_scale)
    return config.ParameterGroupConfig(match=group.match, learning_rate_scale=scale, weight_decay=decay)


def _checkpoint(checkpoint: Checkpoint) -> config.CheckpointConfig:
    return config.CheckpointConfig(
        uri=mounted(checkpoint.uri),
        endpoint=_endpoint(checkpoint.endpoint),
        every_steps=checkpoint.every_steps,
        keep_last=checkpoint.keep_last,
        keep_every=checkpoint.keep_every,
        resume=checkpoint.resume,
    )
