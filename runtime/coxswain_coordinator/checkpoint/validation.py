"""Checks which run owns a checkpoint location and which manifests this job may resume from.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET

from coxswain.config import JobConfig, ModelConfig, SourceConfig
from coxswain.errors import Refused
from coxswain.membership.permutation import VERSION as STREAM_VERSION
from coxswain.planlog import manifest_key
from coxswain.structs import UNDECODABLE, prepare
from coxswain.wire import CheckpointManifest, Shard

T = TypeVar("T")

MANIFEST_VERSION = 2
"""The newest that this release reads: that of manifests whose shards have sidecars. All others have version 1."""


class RunRecord(msgspec.Struct, frozen=True):
    """`run.json` at the checkpoint location: the run that owns it.

    The first coordinator creates it.
    """

    version: int
    job: str
    uid: str
    stream_hash: str
    stream: dict[str, str] | None = None  # what the hash covers, by field; None: written by an earlier release


def job_of(job: JobConfig) -> str:
    return f"{job.namespace}/{job.name}"


def stream_hash(job: JobConfig) -> str:
    """The mix's hash, with the version of the algorithm that orders the stream."""
    return f"v{STREAM_VERSION}:{job.stream_hash()}"


def stream_fields(job: JobConfig) -> dict[str, str]:
    """What `stream_hash` covers, by field."""
    batch: dict[str, int] = msgspec.to_builtins(job.batch)
    fields = {"seed": str(job.mix.seed), "longSequences": job.mix.long_sequences, "stream version": str(STREAM_VERSION)}
    if job.evaluation.tokens:
        fields["evaluation.tokens"] = str(job.evaluation.tokens)
    fields["order of sources"] = " ".join(s.name for s in job.mix.sources)
    sources = {f"source {s.name}": f"{s.format} {s.text_field!r} as {_tokenizer(s)}" for s in job.mix.sources}
    return fields | {f"batch.{name}": str(value) for name, value in batch.items()} | sources


def _tokenizer(source: SourceConfig) -> str:
    return " ending in ".join(filter(None, (source.tokenizer.kind, source.tokenizer.eos)))


def run_record(job: JobConfig) -> RunRecord:
    return RunRecord(1, job_of(job), job.uid, stream_hash(job), stream_fields(job))


def manifest_key_of(manifest: CheckpointManifest) -> str:
    return manifest_key(manifest.step)


def check_run(job: JobConfig, found: RunRecord) -> None:
    """Refuses a location that holds another run's plan log."""
    where = f"checkpoint.uri {job.checkpoint.uri!r}"
    if job.checkpoint.resume == "Never" and found.uid != job.uid:
        raise Refused(
            "RunExists",
            f"{where} holds the run of {found.job} (uid {found.uid}) and checkpoint.resume is Never; set it to Auto to "
            "continue that run, or give a fresh checkpoint.uri",
        )
    if found.version > MANIFEST_VERSION:
        raise Refused("NewerCheckpoint", _newer(where, found.version))
    if found.job != job_of(job):
        raise _foreign(where, "job", found.job, job_of(job))
    if found.stream_hash != stream_hash(job):
        raise _foreign_stream(where, found.stream, job)


def read_run(key: str, data: bytes) -> RunRecord:
    try:
        return msgspec.json.decode(data, type=RunRecord)
    except UNDECODABLE as error:
        raise Refused(
            "TornCheckpoint",
            f"{key} is not a run's record ({error}); restore it, or start a new run with a fresh checkpoint.uri",
        ) from error


def read_manifest(key: str, data: bytes) -> CheckpointManifest:
    return _decoded(key, data, CheckpointManifest)


def read_objects(key: str, data: bytes) -> set[str]:
    """The keys of all objects that a manifest names. Decodes neither boxes nor hulls: they take five times their bytes."""
    return {name for shard in _decoded(key, data, _Names).shards for name in shard.objects}


def _decoded(key: str, data: bytes, type_: type[T]) -> T:
    """Checks the version first: a newer manifest may have an unknown shape."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
    except UNDECODABLE as error:
        raise torn(key, f"is not a manifest ({error})") from error
    if version > MANIFEST_VERSION:
        raise Refused("NewerCheckpoint", _newer(key, version))
    try:
        return msgspec.json.decode(data, type=type_)
    except UNDECODABLE as error:
        raise torn(key, f"is not a manifest ({error})") from error


class _Versioned(msgspec.Struct):
    version: int


class _Key(msgspec.Struct):
    key: str


class _ShardNames(msgspec.Struct):
    key: str
    listing: _Key | None = None

    @property
    def objects(self) -> tuple[str, ...]:
        return (self.key, self.listing.key) if self.listing else (self.key,)


class _Names(msgspec.Struct):
    """What a manifest names, of `CheckpointManifest`."""

    shards: tuple[_ShardNames, ...]


def version_of(shards: Iterable[Shard]) -> int:
    """The version of a manifest of these shards: the earliest that has all of it."""
    return 2 if any(shard.listing for shard in shards) else 1


def check_manifest(job: JobConfig, manifest: CheckpointManifest) -> None:
    """Refuses a manifest of another job, model, stream or optimizer."""
    key = manifest_key_of(manifest)
    if manifest.job != job_of(job):
        raise _foreign(key, "job", manifest.job, job_of(job))
    if manifest.model_hash != job.model_hash():
        theirs = None if manifest.model is None else _model_fields(manifest.model)
        raise _foreign(key, "model", *_differences(theirs, _model_fields(job.model)))
    if manifest.stream_hash != stream_hash(job):
        raise _foreign_stream(key, None, job)
    if manifest.optimizer_kind not in (UNSET, job.optimizer.kind):
        kept = f"bring back optimizer.kind {manifest.optimizer_kind}, or "
        raise _foreign(key, "optimizer.kind", manifest.optimizer_kind, job.optimizer.kind, kept)


def first_missing(manifest: CheckpointManifest, sizes: Mapping[str, int]) -> str:
    """What is wrong with the first object that is not as the manifest says; empty: the checkpoint is whole.

    `sizes`: bytes by key of those of its objects that are in the store.
    """
    for name, wanted in ((name, size) for shard in manifest.shards for name, size in shard.objects.items()):
        if sizes.get(name) != wanted:
            found = "is missing" if name not in sizes else f"has {sizes[name]} bytes instead of {wanted}"
            return f"names {name}, which {found}"
    return ""


def check_recorded(job: JobConfig, newest: int, recorded: int) -> None:
    """Refuses to resume below the step of the last checkpoint that the job's status names."""
    if newest >= recorded:
        return
    where = job.checkpoint.uri.rstrip("/")
    found = f"the newest one there is before step {newest}" if newest else "there is none"
    raise Refused(
        "CheckpointMissing",
        f"{where}: the job saved a checkpoint before step {recorded}, but {found}; restore "
        f"{manifest_key(recorded)} and its shards, or resume {_from(newest)} with "
        "`cox run --accept-older-checkpoint` (on Kubernetes: remove status.lastCheckpoint)",
    )


def _from(newest: int) -> str:
    return f"from step {newest}" if newest else "from the beginning"


def check_index(manifest: CheckpointManifest, index_hash: str) -> None:
    """Refuses to continue over sources whose content has changed since the checkpoint."""
    before = dict(part.split("=") for part in manifest.index_hash.split(","))
    now = dict(part.split("=") for part in index_hash.split(","))
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise Refused(
            "SourceChanged",
            f"sources {', '.join(changed)} have other content, or another tokenizer, than at {manifest_key_of(manifest)}; "
            "bring back what was there, or start a new run with a fresh checkpoint.uri",
        )


def _newer(where: str, version: int) -> str:
    return f"{where} has version {version}, this release reads up to {MANIFEST_VERSION}; use the release that wrote it"


def _foreign_stream(where: str, theirs: dict[str, str] | None, job: JobConfig) -> Refused:
    return _foreign(where, "stream (mix, seed, batch or algorithm)", *_differences(theirs, stream_fields(job)))


def _model_fields(model: ModelConfig) -> dict[str, str]:
    fields: dict[str, object] = msgspec.to_builtins(model)
    return {f"model.{name}": str(value) for name, value in fields.items() if name not in ("preset", "init_from")}


def _differences(theirs: dict[str, str] | None, ours: dict[str, str]) -> tuple[str, str]:
    """The fields that differ, on both sides."""
    if theirs is None:
        return "it does not name the fields", "another"
    fields = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    return _named(theirs, fields), _named(ours, fields)


def _named(side: dict[str, str], fields: list[str]) -> str:
    return ", ".join(f"{name} {side.get(name, 'absent')}" for name in fields)


def _foreign(where: str, what: str, theirs: str, ours: str, way_out: str = "") -> Refused:
    return Refused(
        "ForeignCheckpoint",
        f"{where} belongs to another {what}: {theirs}, this job's is {ours}; {way_out}give this job its own checkpoint.uri",
    )


def torn(key: str, why: str) -> Refused:
    return Refused(
        "TornCheckpoint",
        f"{key} {why}; restore what is missing, or delete {key} to resume from the checkpoint before it: "
        "`cox run --accept-older-checkpoint`",
    )


def check_batch(job: JobConfig) -> None:
    """Refuses a batch of which some steps would be empty."""
    if job.batch.max_sequence_tokens > job.batch.tokens_per_step:
        raise Refused(
            "BatchTooSmall",
            f"batch.tokensPerStep is {job.batch.tokens_per_step}; it must be at least batch.maxSequenceTokens "
            f"({job.batch.max_sequence_tokens}), else some steps would be empty",
        )


prepare(__name__)
