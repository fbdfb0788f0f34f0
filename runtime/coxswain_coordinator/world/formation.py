"""Decides when a world is formed, of which trainers, and from which state. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.layout import Device, Layout, layout_for
from coxswain.membership.mix_record import without_record
from coxswain.planlog import Generation, LoaderShare
from coxswain.wire import CheckpointManifest, Register, World
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.state.registry import index_of


def layout_of(job: JobConfig, agents: Sequence[Register]) -> Layout:
    """The job's layout over the agents' devices; without replicas where they are too few."""
    devices = (Device(index_of(a.name), d) for a in agents for d in range(a.devices))
    return layout_for(devices, job.model.layers, job.parallelism)


def capacity_fault(job: JobConfig, layout: Layout) -> str:
    """Why this layout cannot hold the longest sequence; empty when it can.

    The coordinator waits for more trainers then; the job does not fail.
    """
    parallel, longest = job.parallelism, job.batch.max_sequence_tokens
    if not layout.replicas:
        needed = parallel.least_devices
        return f"CapacityLost: {len(layout.standby)} devices, the layout needs {needed}; waiting for more trainers"
    usable = min(parallel.max_degree, layout.largest_ring())
    if usable * parallel.tokens_per_replica >= longest:
        return ""
    return (
        f"CapacityLost: {usable} replicas hold {usable * parallel.tokens_per_replica} tokens of one sequence, "
        f"batch.maxSequenceTokens is {longest}; waiting for more trainers"
    )


def next_generation(
    job: JobConfig,
    number: int,
    author: str,
    agents: Sequence[Register],
    loaders: tuple[LoaderShare, ...],
    manifest: CheckpointManifest | None,
) -> Generation:
    """The next generation: every agent's devices, from the last checkpoint (or from scratch)."""
    return Generation(
        generation=number,
        author=author,
        first_step=manifest.step if manifest else 0,
        layout=layout_of(job, agents),
        trainers=tuple(a.pod for a in agents),
        loaders=loaders,
        checkpoint=manifest_key_of(manifest) if manifest else "",
        job=digest_of(job),
    )


def digest_of(job: JobConfig) -> str:
    """Hashes what a world depends on: not what the plan log records of the mix (MixRecord)."""
    what = msgspec.to_builtins(replace(job, mix=without_record(job.mix)))
    del what["first_step_timeout_seconds"]  # the coordinator's own
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def is_adoptable(
    record: Generation | None, job: JobConfig, agents: Sequence[Register], loaders: tuple[LoaderShare, ...]
) -> bool:
    """Whether an earlier coordinator's world still runs: all trainers report it."""
    return (
        record is not None
        and record.job == digest_of(job)
        and record.loaders == loaders
        and record.trainers == tuple(a.pod for a in agents)
        and all(a.generation == record.generation for a in agents)
    )


def vocabulary_of(job: JobConfig, tokenizer: int) -> int:
    """Rows of the embedding: the model's own, or the tokenizer's ids rounded up to 64."""
    fixed = job.model.vocabulary
    if fixed and fixed < tokenizer:
        raise Refused(
            "VocabularyTooSmall",
            f"model.config.vocabulary is {fixed}, the tokenizer has {tokenizer} ids; give at least {tokenizer}, or 0 to "
            "follow the tokenizer",
        )
    return fixed or -(-tokenizer // 64) * 64


def world_of(record: Generation, agents: Sequence[Register], vocabulary: int, ids: int = 0) -> World:
    return World(
        generation=record.generation,
        first_step=record.first_step,
        layout=record.layout,
        seats=record.layout.ranks(),
        trainers=tuple(a.name for a in agents),
        loaders=record.loaders,
        checkpoint=record.checkpoint,
        vocabulary=vocabulary,
        ids=ids,
    )
