"""Decides when a world is formed, of which trainers, and from which state. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused
from coxswain.layout import Device, Layout, layout_for
from coxswain.live import LiveSource
from coxswain.membership.mix_record import without_record
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Cursor
from coxswain.planlog import Generation, LoaderShare
from coxswain.wire import CheckpointManifest, Register, World
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.state.registry import index_of


def layout_of(job: JobConfig, agents: Sequence[Register]) -> Layout:
    """The job's layout over the agents' devices; without replicas where they are too few."""
    devices = (Device(index_of(a.name), d) for a in agents for d in range(a.devices))
    return layout_for(devices, job.model.layers, job.parallelism)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a world begins. Without a living source at the checkpoint, and without that from the seed."""

    cursor: Cursor
    stream_digest: str
    checkpoint: str = ""  # key of the newest manifest
    live: LiveSource | None = None


def at_checkpoint(job: JobConfig, manifest: CheckpointManifest | None) -> Start:
    if manifest is None:
        return Start(initial_cursor(job.mix), STREAM_SEED)
    return Start(manifest.cursor, manifest.stream_digest, manifest_key_of(manifest))


def next_generation(
    job: JobConfig, number: int, author: str, agents: Sequence[Register], loaders: tuple[LoaderShare, ...], start: Start,
    layout: Layout | None = None, size: int | None = None,
) -> Generation:  # fmt: skip
    """The next generation: the agents' devices in this layout (None: the job's)."""
    record = Generation(
        generation=number,
        author=author,
        first_step=start.cursor.step,
        layout=layout or layout_of(job, agents),
        trainers=by_index(agents, {index_of(a.name): a.pod for a in agents}),
        loaders=loaders,
        checkpoint=start.checkpoint,
        job=digest_of(job),
        size=UNSET if size in (None, job.trainers) else size,
    )
    if start.live is None:
        return record
    return replace(record, live=start.live, cursor=start.cursor, stream_digest=start.stream_digest)


def start_of(record: Generation, job: JobConfig, manifest: CheckpointManifest | None) -> Start:
    """Where the steps of a recorded generation begin that no checkpoint holds."""
    if (
        record.live
        and record.cursor
        and record.stream_digest
        and record.first_step >= (manifest.step if manifest else 0)
    ):
        return Start(record.cursor, record.stream_digest, record.checkpoint, record.live)
    return at_checkpoint(job, manifest)


def by_index(agents: Iterable[Register], values: Mapping[int, str]) -> tuple[str, ...]:
    """By index of a trainer; empty for those that are not there."""
    return tuple(values.get(index, "") for index in range(1 + max(index_of(a.name) for a in agents)))


def digest_of(job: JobConfig) -> str:
    """Hashes what a world depends on: not what the plan log records of the mix (MixRecord)."""
    what = msgspec.to_builtins(replace(job, mix=without_record(job.mix)))
    del what["first_step_timeout_seconds"]  # the coordinator's own
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def is_adoptable(
    record: Generation | None, job: JobConfig, agents: Sequence[Register], loaders: tuple[LoaderShare, ...]
) -> bool:
    """Whether an earlier coordinator's world still runs: all of its trainers that work report it. One on standby may be gone."""
    if record is None or record.job != digest_of(job) or record.loaders != loaders:
        return False
    working = {seat.device.trainer for seat in record.layout.ranks()}
    there = [a for a in members_of(record, agents) if index_of(a.name) in working]
    return len(there) == len(working) and all(a.generation == record.generation and not a.left for a in there)


def members_of(record: Generation, agents: Iterable[Register]) -> list[Register]:
    """The agents whose pods are in this world."""
    pods = dict(enumerate(record.trainers))
    return [a for a in agents if pods.get(index_of(a.name)) == a.pod]


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
    nodes = by_index(agents, {index_of(a.name): a.node for a in agents})
    return World(
        generation=record.generation,
        first_step=record.first_step,
        layout=record.layout,
        seats=record.layout.ranks(),
        trainers=tuple(f"trainer-{index}" for index in range(len(record.trainers))),
        loaders=record.loaders,
        checkpoint=record.checkpoint,
        vocabulary=vocabulary,
        ids=ids,
        live=record.live,
        nodes=nodes if any(nodes) else UNSET,
    )
